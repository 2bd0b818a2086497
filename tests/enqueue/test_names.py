"""Names in either form of Unicode: whatever way a job key, a limit or a part of its key comes in, it is the same."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_ojs_unique import InvalidRequest, Limit, chain
from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Job, LimitOverride
from django_ojs_unique.ojs.limits import fair_partition_of, stored_limits
from django_ojs_unique.reporting.search import exact
from django_ojs_unique.testing import assert_enqueued

pytestmark = pytest.mark.django_db

COMPOSED, DECOMPOSED = "café", "cafe\u0301"
FORMS = [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)]


def cli(*arguments: str) -> Any:
    out = io.StringIO()
    call_command("jobs", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def by_cron(key: str) -> Any:
    entry = CronJob.objects.define("x", "* * * * *", "t", key=key)
    cron.tick("default", timezone.now() + timedelta(minutes=2))
    entry.refresh_from_db()
    return entry.last_job_id


PYTHON: dict[str, Callable[[str], Any]] = {
    "enqueue": lambda key: Job.objects.enqueue("t", key=key).job.pk,
    "enqueue_many": lambda key: Job.objects.enqueue_many([{"type": "t", "key": key}]).results[0].job.pk,
    "a workflow": lambda key: chain({"type": "t", "key": key}).enqueue().members[0].job_id,
    "a periodic job": by_cron,
    "explain": lambda key: Job.objects.explain("t", key=key).duplicates[0].job.pk,
    "a filter": lambda key: Job.objects.get(key=key).pk,
    "a filter by several": lambda key: Job.objects.get(key__in=[key, "other"]).pk,
    "remove": lambda key: Job.objects.remove(key=key).pk,
    "remove with a type": lambda key: Job.objects.remove(key=key, type="t", key_scope="type").pk,
    "a helper for tests": lambda key: assert_enqueued("t", key=key).pk,
    "the search of the admin": lambda key: exact(Job.objects.all(), key).get().pk,
    "jobs list": lambda key: cli("list", "--key", key)[0]["id"],
    "jobs explain": lambda key: cli("explain", "t", "--key", key)["duplicates"][0]["job_id"],
    "jobs cancel": lambda key: cli("cancel", "--key", key)["count"] and Job.objects.get(state="cancelled").pk,
}


@pytest.mark.parametrize(("stored", "asked"), FORMS)
@pytest.mark.parametrize("way", PYTHON)
def test_a_key_is_the_same_in_either_form(way: str, stored: str, asked: str) -> None:
    job = Job.objects.enqueue("t", key=stored).job
    assert job.key == COMPOSED
    assert str(PYTHON[way](asked)) == str(job.pk)


@pytest.mark.slow
@pytest.mark.parametrize(("stored", "asked"), FORMS)
def test_a_key_is_the_same_in_either_form_over_http_and_in_the_list_of_the_admin(
    stored: str, asked: str, admin_client: Any
) -> None:
    job = Job.objects.enqueue("t", key=stored).job
    assert [each["id"] for each in admin_client.get(f"/ojs/v1/jobs?key={quote(asked)}").json()["jobs"]] == [str(job.pk)]
    page = admin_client.get(f"/admin/django_ojs_unique/job/?q={quote(asked)}")
    assert str(job.pk) in page.content.decode()


@pytest.mark.slow
def test_a_key_that_no_job_can_have_is_refused_by_each_filter(admin_client: Any) -> None:
    for key in ("", "x" * 513, "a\nb"):
        with pytest.raises(InvalidRequest, match="key: "):
            Job.objects.remove(key=key)
        with pytest.raises(CommandError, match="key: "):
            call_command("jobs", "list", "--key", key)
        answer = admin_client.get(f"/ojs/v1/jobs?key={quote(key)}")
        assert answer.json()["error"]["message"].startswith("key: ")


def test_the_length_of_a_key_is_counted_as_it_is_stored() -> None:
    assert len(Job.objects.enqueue("t", key="e\u0301" * 512).job.key) == 512


@pytest.mark.parametrize(("declared", "given"), FORMS)
def test_the_name_and_the_key_of_a_limit_are_the_same_in_either_form(declared: str, given: str) -> None:
    limit = Limit(key=[f"args.{declared}"], running=1, name=declared)
    assert limit == Limit(key=[f"args.{given}"], running=1, name=given)
    one, other = (stored_limits([limit], type="t", queue="q", args={form: form}, meta={}) for form in (declared, given))
    assert one == other
    Job.objects.enqueue("t", {given: given}, limit=limit)
    assert LimitOverride.objects.set(given, running=2)
    assert cli("limits", declared)["override"]["running"] == 2
    assert Limit(key=[f"args.{declared}"], running=1).name == f"args.{COMPOSED}"


def test_the_partitions_of_a_fair_queue_are_the_same_in_either_form() -> None:
    partitions = {
        fair_partition_of([f"args.{part}"], type="t", queue="q", args={name: value}, meta={})
        for part in (COMPOSED, DECOMPOSED)
        for name in (COMPOSED, DECOMPOSED)
        for value in (COMPOSED, DECOMPOSED)
    }
    assert len(partitions) == 1
