"""S0-180..S0-185: the examples that the specification prints, word for word."""

# ruff: noqa: E501

import json

import pytest

from django_ojs_unique.models import Job
from tests.support.jobs import HOUR, attempt, enqueue, fresh

pytestmark = pytest.mark.django_db


def send(text, **changes):
    """Enqueue a job as printed, with changed members."""
    envelope = {**json.loads(text), **changes}
    return attempt(envelope.pop("type"), envelope.pop("args", None), **envelope)


REPORT = """{ "type": "report.daily", "args": {"date": "2026-02-12"}, "unique": { "keys": ["type"], "on_conflict": "ignore" }}"""
WELCOME = """{ "type": "email.send_welcome", "args": {"user_id": 42, "locale": "en-US"}, "unique": { "keys": ["type", "args"], "args_keys": ["user_id"], "on_conflict": "reject" }}"""
PUSH = """{ "type": "notification.push", "args": {"user_id": 42, "event": "new_comment"}, "unique": { "keys": ["type", "args"], "args_keys": ["user_id", "event"], "period": "PT1H", "on_conflict": "ignore" }}"""
RESIZE = """{ "type": "image.resize", "queue": "thumbnails", "args": {"image_id": "img_abc123"}, "unique": { "keys": ["type", "queue", "args"], "args_keys": ["image_id"], "on_conflict": "replace" }}"""
WARM = """{ "type": "cache.warm", "args": {"resource": "products"}, "meta": {"tenant_id": "acme"}, "unique": { "keys": ["type", "args", "meta"], "meta_keys": ["tenant_id"], "on_conflict": "ignore" }}"""
STRUCTURE = """{ "unique": { "keys": ["type", "queue", "args"], "args_keys": ["user_id"], "meta_keys": [], "period": "PT1H", "states": ["available", "active", "scheduled", "retryable", "pending"], "on_conflict": "reject" }}"""


@pytest.mark.parametrize("example", [pytest.param(REPORT, id="S0-180")])
def test_only_one_daily_report_at_a_time(example):
    created, first = send(example)
    ignored, named = send(example, args={"date": "2026-02-13"})
    assert (created, ignored, named) == ("created", "deduplicated", first)


@pytest.mark.parametrize("example", [pytest.param(WELCOME, id="S0-181")])
def test_one_welcome_mail_for_each_user(example):
    _, first = send(example)
    assert send(example, args={"user_id": 42, "locale": "de-DE"}) == ("rejected", first)
    assert send(example, args={"user_id": 43, "locale": "en-US"})[0] == "created"


@pytest.mark.parametrize("example", [pytest.param(PUSH, id="S0-182")])
def test_at_most_one_notification_an_hour(example, clock):
    _, first = send(example)
    clock.advance(HOUR / 2)
    assert send(example) == ("deduplicated", first)
    assert send(example, args={"user_id": 42, "event": "new_like"})[0] == "created"
    clock.advance(HOUR / 2)
    assert send(example)[0] == "created"


@pytest.mark.parametrize("example", [pytest.param(RESIZE, id="S0-183")])
def test_the_latest_resize_of_each_queue_wins(example):
    _, first = send(example)
    replaced, second = send(example)
    assert replaced == "replaced"
    assert (fresh(first).state, fresh(first).replaced_by_id) == ("cancelled", second.pk)
    assert send(example, queue="previews")[0] == "created"
    assert fresh(second).state == "available"


@pytest.mark.parametrize("example", [pytest.param(WARM, id="S0-184")])
def test_one_cache_warming_for_each_tenant(example):
    _, first = send(example)
    assert send(example, meta={"tenant_id": "acme", "trace_id": "x"}) == ("deduplicated", first)
    assert send(example, meta={"tenant_id": "globex"})[0] == "created"


@pytest.mark.parametrize("example", [pytest.param(STRUCTURE, id="S0-185")])
def test_the_printed_policy_is_accepted_word_for_word(example):
    unique = json.loads(example)["unique"]
    job = enqueue("email.send", {"user_id": 42}, unique=unique).job
    assert fresh(job).unique == {**unique, "meta_keys": None}
    assert Job.objects.explain("email.send", {"user_id": 42}, unique=unique).action == "reject"
