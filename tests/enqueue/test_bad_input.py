"""Bad input is refused by `Job.objects.enqueue` before anything is written, with the field, the value and the hint."""

import inspect
import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from rest_framework.permissions import BasePermission

from django_ojs_unique import InvalidPolicy, InvalidRequest, InvalidRetryPolicy
from django_ojs_unique.exceptions import JobIdTaken, UnknownJobType
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support import refusals

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 2, 12, 12, tzinfo=UTC)
TEN_MEGABYTES = "x" * 10_000_000


class Hostile:
    def __repr__(self):
        raise RuntimeError("no")


def refused(error, field, said, type="t", args=None, **options):
    """Enqueue beside a stored job; check that it is refused as expected and that nothing was asked of the database."""
    before = Job.objects.enqueue("t", unique={}).job.pk
    rows = list(Job.objects.values())
    with CaptureQueriesContext(connection) as queries, pytest.raises(error) as caught:
        Job.objects.enqueue(type, args, **options)
    assert queries.captured_queries == []
    assert list(Job.objects.values()) == rows
    assert Job.objects.get().pk == before
    assert not SuppressedEnqueue.objects.exists()
    assert caught.value.details["field"] == field
    assert said in caught.value.message
    assert len(caught.value.message) < 600
    assert len(json.dumps(caught.value.details)) < 600
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type", "said"),
    [
        ("", "lower-case words"),
        ("Email.send", "got 'Email.send'"),
        ("email..send", "not a valid name"),
        (".email", "not a valid name"),
        ("email.", "not a valid name"),
        ("email send", "not a valid name"),
        ("1mail", "not a valid name"),
        ("email.send\n", "not a valid name"),
        ("émail", "not a valid name"),
        ("email.s\x00end", "not a valid name"),
        ("a" * 256, "longer than 255"),
        (TEN_MEGABYTES, "longer than 255"),
        (TEN_MEGABYTES + "!", "longer than 255 characters"),
        (None, "must be a string"),
        (42, "must be a string"),
        (b"email.send", "must be a string"),
        (["email.send"], "must be a string"),
        (Hostile(), "must be a string"),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, str) else type(value).__name__,
)
def test_a_type_outside_its_pattern_is_refused(type, said):
    assert refused(InvalidRequest, "type", said, type=type).code == "invalid_request"


@pytest.mark.parametrize("type", ["t", "email.send", "a-b_c.d0", "a" * 255, "x." * 127 + "x"])
@pytest.mark.every_database
def test_a_type_inside_its_pattern_is_accepted(type):
    assert Job.objects.enqueue(type).job.type == type


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("", "not a valid name"),
        ("Emails", "got 'Emails'"),
        ("e_mails", "not a valid name"),
        ("-emails", "not a valid name"),
        (".emails", "not a valid name"),
        ("emails\n", "not a valid name"),
        ("e mails", "not a valid name"),
        ("q" * 129, "longer than 128"),
        (TEN_MEGABYTES, "longer than 128"),
        (0, "must be a string"),
        (7, "must be a string"),
        (False, "must be a string"),
        ([], "must be a string"),
        (["emails"], "must be a string"),
        (b"emails", "must be a string"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_queue_outside_its_pattern_is_refused(queue, said):
    refused(InvalidRequest, "queue", said, queue=queue)


@pytest.mark.parametrize("queue", ["q", "0", "a.b-c.9", "q" * 128])
@pytest.mark.every_database
def test_a_queue_inside_its_pattern_is_accepted(queue):
    assert Job.objects.enqueue("t", queue=queue).job.queue == queue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "field", "said"),
    [
        ("text", "args", "must be an object (keyword arguments) or an array (positional)"),
        (42, "args", "Write [42]."),
        (True, "args", "must be an object"),
        (0, "args", "must be an object"),
        ("", "args", "must be an object"),
        ({1}, "args", "must be an object"),
        (b"x", "args", "must be an object"),
        (TEN_MEGABYTES, "args", "must be an object"),
        (10**5000, "args", "must be an object"),
        (Hostile(), "args", "must be an object"),
        ({"a": TEN_MEGABYTES}, "args", "limit is 1,048,576"),
        ([TEN_MEGABYTES], "args", "OJS_UNIQUE['MAX_ARGS_BYTES']"),
        ({TEN_MEGABYTES: 1}, "args", "10,000,006 bytes"),
        ({"a": [0] * 1_000_000}, "args", "limit is 1,048,576"),
        ({"a": 10**5000}, "args.a", "2^53-1"),
        ({"a": Hostile()}, "args.a", "Hostile"),
        ({"a": [{"b": {1, 2}}]}, "args.a[0].b", "is a set"),
    ],
    ids=lambda value: str(type(value).__name__) if not isinstance(value, str) or len(value) > 40 else value,
)
def test_args_that_are_not_an_object_or_array_of_reasonable_json_are_refused(args, field, said):
    refused(InvalidRequest, field, said, args=args)


def nested(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("levels", [101, 5_000])
def test_args_nested_too_deeply_are_refused(levels):
    refused(InvalidRequest, "args", "nested deeper than 100 levels", args=nested(levels))


@pytest.mark.parametrize("levels", [33, 99])
@pytest.mark.every_database
def test_args_nested_deeply_are_stored_as_they_are(levels):
    job = Job.objects.enqueue("t", nested(levels), unique={"keys": ["args"]}).job
    assert Job.objects.get(pk=job.pk).args == nested(levels)


def test_args_of_exactly_the_limit_are_accepted(settings):
    settings.OJS_UNIQUE = {"MAX_ARGS_BYTES": 12}
    Job.objects.enqueue("t", {"a": "éé"}).job.delete()
    refused(InvalidRequest, "args", "is 13 bytes as JSON; the limit is 12", args={"a": "ééx"})


@pytest.mark.parametrize(
    ("meta", "field", "said"),
    [
        ([], "meta", "must be an object"),
        ("text", "meta", "must be an object"),
        (0, "meta", "must be an object"),
        ({"a": "x" * 70_000}, "meta", "limit is 65,536"),
        ({"a": float("nan")}, "meta.a", "not a number"),
        ({1: 1}, "meta", "object key that is a int"),
    ],
    ids=["list", "text", "number", "big", "nan", "key"],
)
def test_meta_that_is_no_reasonable_object_is_refused(meta, field, said):
    refused(InvalidRequest, field, said, meta=meta)


BEFORE_THE_CALENDAR = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))
AFTER_THE_CALENDAR = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))


@pytest.mark.parametrize("field", ["scheduled_at", "expires_at"])
@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (datetime(2026, 1, 1), "make_aware"),
        ("2026-01-01T00:00:00Z", "must be a datetime"),
        (1_700_000_000, "must be a datetime"),
        (NOW.date(), "must be a datetime"),
        (timedelta(hours=1), "must be a datetime"),
        (0, "must be a datetime"),
        (BEFORE_THE_CALENDAR, ""),
        (AFTER_THE_CALENDAR, ""),
    ],
    ids=["naive", "text", "number", "date", "timedelta", "zero", "before-the-calendar", "after-the-calendar"],
)
def test_a_moment_that_is_no_aware_datetime_in_the_calendar_is_refused(field, moment, said):
    refused(InvalidRequest, field, said, **{field: moment})


@pytest.mark.parametrize("moment", [datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)])
@pytest.mark.every_database
def test_the_ends_of_the_calendar_are_stored_as_they_are(moment):
    job = Job.objects.enqueue("t", scheduled_at=moment).job
    assert Job.objects.get(pk=job.pk).scheduled_at == moment


@pytest.mark.parametrize(
    "priority",
    [-101, 101, 1.0, "1", True, 10**5000],
    ids=lambda value: repr(value)[:5] if value != 10**5000 else "huge",
)
def test_a_priority_that_is_no_small_integer_is_refused(priority):
    refused(InvalidRequest, "priority", "from -100 to 100", priority=priority)


@pytest.mark.parametrize(
    ("timeout", "said"),
    [
        (0, "positive"),
        (-1, "positive"),
        (True, "positive"),
        (float("nan"), "positive"),
        (float("inf"), "positive"),
        (10**400, "positive"),
        ("30s", "ISO 8601"),
        ("", "ISO 8601"),
        ("PT0S", "is zero"),
        ("P1M", "length of time"),
        (timedelta(), "positive"),
        (timedelta(seconds=-1), "positive"),
        ([30], "positive"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_timeout_that_is_no_positive_length_is_refused(timeout, said):
    refused(InvalidRequest, "timeout", said, timeout=timeout)


@pytest.mark.parametrize(
    ("timeout", "milliseconds"),
    [("PT30S", 30_000), (30, 30_000), (0.25, 250), (timedelta(minutes=1), 60_000), (None, None), ("P1D", 86_400_000)],
)
def test_a_timeout_is_a_duration_a_timedelta_or_seconds(timeout, milliseconds):
    assert Job.objects.enqueue("t", timeout=timeout).job.timeout_ms == milliseconds


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        ("urgent", "tags"),
        (None, "tags"),
        ({"a": 1}, "tags"),
        ([1], "tags[0]"),
        (["a", ""], "tags[1]"),
        (["a" * 256], "tags[0]"),
        ([TEN_MEGABYTES], "tags[0]"),
        (["a\x00"], "tags[0]"),
        (["\ud800"], "tags[0]"),
    ],
    ids=["text", "none", "object", "number", "empty", "long", "huge", "nul", "surrogate"],
)
def test_tags_that_are_no_list_of_short_strings_are_refused(tags, field):
    refused(InvalidRequest, field, "", tags=tags)


@pytest.mark.parametrize(
    ("unique", "field", "hint"),
    [
        ({"keys": ["argz"]}, "unique.keys[0]", "Did you mean 'args'?"),
        ({"keys": "type"}, "unique.keys", "Write ['type']."),
        ({"keys": ["args"], "args_keys": ["user"]}, "unique.args_keys", "Did you mean 'user_id'?"),
        ({"keys": ["args"], "args_keys": []}, "unique.args_keys", "Leave it out for all of args"),
        ({"args_keys": ["user_id"]}, "unique.args_keys", "Add 'args' to keys."),
        ({"keys": ["meta"]}, "unique.meta_keys", "Name the keys that count."),
        ({"period": "1h"}, "unique.period", "Write an ISO 8601 duration such as 'PT1H'"),
        ({"period": TEN_MEGABYTES}, "unique.period", "Write an ISO 8601 duration"),
        ({"states": []}, "unique.states", "Leave it out, or name one."),
        ({"states": ["running"]}, "unique.states[0]", "Valid: 'available'"),
        ({"on_conflict": "Reject"}, "unique.on_conflict", "Did you mean 'reject'?"),
        ({"by_args": True}, "unique.by_args", "Valid: 'keys'"),
        ([], "unique", "must be an object"),
        ("type", "unique", "must be an object"),
        (False, "unique", "must be an object"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else next(iter(value)),
)
@pytest.mark.parametrize("inside", [True, False])
def test_an_invalid_policy_is_refused_with_a_hint(unique, field, hint, inside):
    with transaction.atomic() if inside else nullcontext():
        refused(InvalidPolicy, field, hint, args={"user_id": 1}, unique=unique)
        assert Job.objects.enqueue("after").created


@pytest.mark.parametrize("name", ["x" * 1_000_000, "k"], ids=["huge", "short"])
def test_an_unknown_member_of_a_policy_is_named_in_few_words(name):
    before = Job.objects.count()
    with pytest.raises(InvalidPolicy) as caught:
        Job.objects.enqueue("t", unique={name: 1})
    assert len(caught.value.message) < 600
    assert Job.objects.count() == before


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        ({"max_attempts": -1}, "retry.max_attempts"),
        ({"max_attempts": 10**5000}, "retry.max_attempts"),
        ({"backoff_coefficient": 10**5000}, "retry.backoff_coefficient"),
        ({"initial_interval": "1s"}, "retry.initial_interval"),
        ({"non_retryable_errors": ["a\x00"]}, "retry.non_retryable_errors[0]"),
        ({"non_retryable_errors": ["\ud800"]}, "retry.non_retryable_errors[0]"),
        ({"tries": 3}, "retry.tries"),
        (3, "retry"),
    ],
    ids=["negative", "huge", "huge-coefficient", "interval", "nul", "surrogate", "member", "number"],
)
def test_an_invalid_retry_policy_is_refused(retry, field):
    refused(InvalidRetryPolicy, field, "", retry=retry)


@pytest.mark.parametrize(
    "id",
    ["x", "", 7, b"0" * 16, ["a"], "0" * 31, TEN_MEGABYTES, Hostile()],
    ids=lambda value: repr(value)[:9] if not isinstance(value, Hostile) else "hostile",
)
def test_an_id_that_is_no_uuid_is_refused(id):
    refused(InvalidRequest, "id", "must be a UUID", id=id)


@pytest.mark.parametrize("option", ["uniq", "priorty", "countdown", "states", "schema", "extra", "created_at", "state"])
def test_an_unknown_option_is_refused(option):
    with pytest.raises(TypeError, match=f"'{option}'"):
        Job.objects.enqueue("t", **{option: "x"})
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"user_id": 5}, "args={'user_id': 5}."),
        ({"user_id": 5, "queue": "q", "locale": "de"}, "args={'locale': 'de', 'user_id': 5}."),
        ({"priorty": 5}, "'priority'?"),
        ({"countdown": 5}, "'delay'?"),
        ({"eta": NOW}, "'scheduled_at'?"),
        ({"kwargs": {}}, "'args'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("call", ["enqueue", "explain", "enqueue_on_commit"])
def test_an_argument_of_the_job_or_a_misspelt_option_is_answered_with_the_hint(call, options, hint):
    for jobs in (Job.objects, Job.objects.using("default")):
        with pytest.raises(TypeError) as caught:
            getattr(jobs, call)("t", **options)
        assert str(caught.value).startswith(f"{call}() ")
        assert f" {next(iter(options))!r}. " in str(caught.value)
        assert str(caught.value).endswith(hint)
    assert not Job.objects.exists()


def test_options_are_named():
    with pytest.raises(TypeError):
        Job.objects.enqueue("t", {}, "queue")
    *kinds, last = [parameter.kind.name for parameter in inspect.signature(Job.objects.enqueue).parameters.values()]
    assert kinds[:2] == ["POSITIONAL_OR_KEYWORD"] * 2
    assert set(kinds[2:]) == {"KEYWORD_ONLY"}
    assert last == "VAR_KEYWORD"


@pytest.mark.parametrize(
    "unique", [None, {}, {"on_conflict": "replace"}, {"keys": ["args"]}, {"on_conflict": "ignore"}]
)
@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.every_database
def test_an_id_that_is_taken_is_refused_and_the_callers_transaction_stays_usable(unique, as_text):
    taken = uuid4()
    Job.objects.enqueue("other", {"n": 1}, id=taken)
    live = Job.objects.enqueue("t", {"n": 1}, unique={"states": ["pending"]}).job
    rows = list(Job.objects.order_by("pk").values())
    with transaction.atomic():
        with pytest.raises(JobIdTaken) as caught:
            Job.objects.enqueue("u", {"n": 2}, id=str(taken) if as_text else taken, unique=unique)
        assert Job.objects.enqueue("after").created
    assert caught.value.code == "duplicate"
    assert caught.value.details == {"field": "id", "existing_job_id": str(taken)}
    assert list(Job.objects.exclude(type="after").order_by("pk").values()) == rows
    assert live.pk in {row["id"] for row in rows}


@pytest.mark.parametrize("strategy", ["replace", "replace_except_schedule"])
@pytest.mark.parametrize("same", [True, False], ids=["the-duplicates-own-id", "another-id"])
@pytest.mark.every_database
def test_a_replacement_under_a_taken_id_replaces_nothing(strategy, same):
    duplicate = Job.objects.enqueue("t", unique={}).job
    other = Job.objects.enqueue("other").job
    rows = list(Job.objects.order_by("pk").values())
    with transaction.atomic():
        with pytest.raises(JobIdTaken):
            Job.objects.enqueue("t", id=(duplicate if same else other).pk, unique={"on_conflict": strategy})
        assert list(Job.objects.order_by("pk").values()) == rows
    assert not SuppressedEnqueue.objects.exists()


def test_an_id_may_be_given():
    wanted = UUID("019078a3-b5c7-7def-8a12-3456789abcde")
    assert Job.objects.enqueue("t", id=str(wanted)).job.pk == wanted
    assert Job.objects.get().pk == wanted


def test_without_an_id_a_uuid_7_is_made():
    ids = [Job.objects.enqueue("t").job.pk for _ in range(3)]
    assert {id.version for id in ids} == {7}
    assert ids == sorted(ids)


def test_a_type_without_a_handler_is_refused_where_the_project_demands_handlers(settings):
    settings.OJS_UNIQUE = {"REQUIRE_HANDLER": True}
    with refusals.refused(UnknownJobType, "type", names="'tests.add'?"):
        Job.objects.enqueue("tests.ad")
    assert not Job.objects.exists()
    assert Job.objects.enqueue("tests.add", {"a": 1}).created


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"DEFAULT_QUEU": "x"}, "Did you mean 'DEFAULT_QUEUE'?"),
        ({"default_queue": "x"}, "Did you mean 'DEFAULT_QUEUE'?"),
        ({"DEFAULT_QUEUE": 7}, "must be a str"),
        ({"DEFAULT_QUEUE": None}, "must be a str"),
        ({"DEFAULT_QUEUE": "Not A Queue"}, "DEFAULT_QUEUE"),
        ({"DEFAULT_QUEUE": ""}, "DEFAULT_QUEUE"),
        ({"MAX_ARGS_BYTES": "1"}, "must be a int"),
        ({"MAX_ARGS_BYTES": True}, "must be a int"),
        ({"MAX_ARGS_BYTES": 0}, "must be positive"),
        ({"MAX_META_BYTES": -1}, "must be positive"),
        ({"RECORD_SUPPRESSED": 1}, "must be a bool"),
        ({"REPLACE_ACTIVE": "no"}, "must be a bool"),
        ({"REQUIRE_HANDLER": None}, "must be a bool"),
        ({"AUTODISCOVER_MODULES": "jobs"}, "OJS_UNIQUE['AUTODISCOVER_MODULES'] must be a list (got 'jobs')."),
        ({"AUTODISCOVER_MODULES": ["shop.jobs"]}, "modules of apps, such as ['jobs', 'tasks'] (got ['shop.jobs'])."),
        ({"EAGER": "yes"}, "OJS_UNIQUE['EAGER'] must be True, False or 'propagate' (got 'yes')."),
        ({"EVENT_RETENTION": "7d"}, "Write an ISO 8601 duration such as 'P30D'."),
        ({"WORKFLOW_RETENTION": 0}, "Write an ISO 8601 duration such as 'P30D'."),
        ({"MAX_WORKFLOW_JOBS": 0}, "must be positive"),
        ({"MAX_WORKFLOW_DEPTH": "5"}, "must be a int"),
        ({"EVENTS": "yes"}, "EVENTS"),
        ({"SUPPRESSED_RETENTION": "30d"}, "Write an ISO 8601 duration such as 'P30D'."),
        ({"SUPPRESSED_RETENTION": 30}, "SUPPRESSED_RETENTION"),
        ({"SUPPRESSED_RETENTION": "P1M"}, "without years or months"),
        ({"SUPPRESSED_RETENTION": timedelta(days=-1)}, "SUPPRESSED_RETENTION"),
        ({"EVENTS": 1}, "must be a bool"),
        ({"API": []}, "must be a dict"),
        ({"API": {"MAX_BATC": 1}}, "Did you mean 'MAX_BATCH'?"),
        ({"API": {"ARRAYS_ONLY": 1}}, "OJS_UNIQUE['API']['ARRAYS_ONLY'] must be a bool"),
        ({"API": {"MAX_BATCH": 0}}, "must be a positive int"),
        ({"API": {"MAX_BODY_BYTES": True}}, "must be a positive int"),
        ({"API": {"MAX_BODY_BYTES": 1e6}}, "must be a positive int"),
        ({"API": {"MAX_WAIT": -1}}, "0 for no waiting"),
        ({"API": {"MAX_WAIT": float("nan")}}, "0 for no waiting"),
        ({"API": {"MAX_WAITING": 0}}, "must be a positive int"),
        ({"API": {"LEASE": "30 minutes"}}, "OJS_UNIQUE['API']['LEASE']"),
        ({"API": {"LEASE": "P1M"}}, "years and months vary"),
        ({"API": {"LEASE": -5}}, "must be a positive length of time"),
        ({"API": {"AUTHENTICATION": "rest_framework.authentication.TokenAuthentication"}}, "must be a list"),
        ({"API": {"AUTHENTICATION": ["rest_framework.authentication.TokenAuth"]}}, "cannot be imported"),
        ({"API": {"AUTHORIZE": "nowhere.rule"}}, "['AUTHORIZE'] cannot be imported: No module named"),
        ({"API": {"AUTHORIZE": ["tests.urls"]}}, "must be a function, or the dotted name of one"),
        ({"API": {"AUTHORIZE": BasePermission()}}, "must be a function, or the dotted name of one"),
        ({"API": {"AUTHORIZE": "rest_framework.permissions.IsAdminUser"}}, "must name a plain function"),
        ({"API": {"AUTHORIZE": f"{__name__}.rule_for_later"}}, "must name a plain function"),
        ({"API": {"AUTHORIZE": f"{__name__}.rule_of_three"}}, "cannot be called with (request, action, queue"),
        ({"API": {"THROTTLES": None}}, "must be a list"),
        ({"API": {"THROTTLES": ["nowhere.Throttle"]}}, "['THROTTLES'][0] cannot be imported: No module named"),
        ({"API": {"THROTTLES": [7]}}, "is not a class"),
        ({"API": {"PERMISSIONS": ["x"]}}, "must be a dict"),
        ({"API": {"PERMISSIONS": {"producer": []}}}, "Did you mean 'producers'?"),
        ({"API": {"PERMISSIONS": {"producers": []}}}, "is empty. Leave it out for staff only"),
        ({"API": {"PERMISSIONS": {"workers": "rest_framework.permissions.IsAdminUser"}}}, "must be a list"),
        ({"API": {"PERMISSIONS": {"workers": ["IsAdminUser"]}}}, "['workers'][0] cannot be imported"),
        ({1: 2}, "OJS_UNIQUE[1] is not a setting"),
        ({"RETRY": {"max_attempt": 2}}, "OJS_UNIQUE['RETRY']: retry.max_attempt: is not a member of a retry policy"),
        ({"LISTEN_DATABASES": {"default": "otter"}}, "'otter' is no entry of DATABASES. Did you mean 'other'?"),
        ({"FAIR_QUEUES": ["imports"]}, "OJS_UNIQUE['FAIR_QUEUES'] must be a dict (got ['imports'])."),
        ({"FAIR_QUEUES": {"Imports": ["type"]}}, "OJS_UNIQUE['FAIR_QUEUES']: queue: is not a valid name"),
        ({"FAIR_QUEUES": {"imports": "type"}}, "['imports'] must be a list of names (got 'type'). Write ['type']."),
        ({"FAIR_QUEUES": {"imports": ["tenant"]}}, "['FAIR_QUEUES']['imports'] has a part that names nothing of a job"),
        ({"FAIR_QUEUES": {"imports": []}}, "['imports'] is empty. Name what its jobs take turns by"),
        (["DEFAULT_QUEUE"], "must be a dict"),
        (None, "must be a dict"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_wrong_setting_is_said_by_a_check(value, said, settings):
    settings.OJS_UNIQUE = value
    found = [message for message in run_checks(databases=["default"]) if message.id == "django_ojs_unique.E001"]
    assert len(found) == 1
    assert said in found[0].msg


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"FAIR_QUEUES": {"imports": ["meta.tenant", "args/customer/id"], "mails": ("type",)}},
        {"DEFAULT_QUEUE": "jobs", "MAX_ARGS_BYTES": 10, "MAX_META_BYTES": 10, "RECORD_SUPPRESSED": False},
        {"REPLACE_ACTIVE": False, "REQUIRE_HANDLER": True, "SUPPRESSED_RETENTION": "P7D"},
        {"SUPPRESSED_RETENTION": timedelta(days=7)},
        {"EVENTS": True, "API": {"LEASE": "PT1H", "MAX_WAIT": 0, "ARRAYS_ONLY": True, "MAX_BATCH": 1, "THROTTLES": []}},
        {"API": {"AUTHORIZE": f"{__name__}.rule"}},
        {"API": {"LEASE": timedelta(hours=1), "MAX_WAIT": 5, "AUTHENTICATION": None}},
        {"API": {"AUTHENTICATION": [], "PERMISSIONS": {"workers": [BasePermission]}}},
    ],
)
def test_right_settings_pass_the_check(value, settings):
    settings.OJS_UNIQUE = value
    assert [message for message in run_checks(databases=["default"]) if message.id == "django_ojs_unique.E001"] == []


def rule(request, action, queue, type):
    return True


def rule_of_three(request, action, queue):
    return True


async def rule_for_later(request, action, queue, type):
    return True


def test_a_project_without_time_zones_is_refused_by_a_check(settings):
    settings.USE_TZ = False
    assert "django_ojs_unique.E002" in {message.id for message in run_checks(databases=["default"])}
