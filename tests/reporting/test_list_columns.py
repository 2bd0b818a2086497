"""What a line of a list says of a job, read from the beginnings of its columns and from the whole row."""

from datetime import UTC, datetime

import pytest
from django.db import connection

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import Job
from django_ojs_unique.reporting import list_columns as module
from django_ojs_unique.reporting.list_columns import LONGEST, READ, ListColumns, list_columns, with_list_columns

pytestmark = pytest.mark.django_db

BY_USER = UniquePolicy(keys=["type", "queue", "args"], args_keys=["user_id", "/to/id"])
BY_META = UniquePolicy(keys=["meta"], meta_keys=["tenant"])
FAILED = [{"type": "OSError", "message": "first"}, {"type": "ValueError", "message": "last"}]


def seen(job, **changes):
    """Return the list_columns at a stored job; it is the same for the whole row, unless that was cut."""
    Job._base_manager.filter(pk=job.pk).update(**changes)
    short = list_columns(with_list_columns(Job.objects.all(), ("state",)).get(pk=job.pk))
    assert short == list_columns(Job.objects.get(pk=job.pk))
    return short


def enqueue(args=None, **options):
    return Job.objects.enqueue("email.send", args, **options).job


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, ""),
        ({"id": 5, "text": "ü \U0001f600"}, 'id=5, text="ü \U0001f600"'),
        ([1, {"a": None}], '1, {"a": null}'),
        ({"text": "t" * 99}, f'text="{"t" * 73}…'),
    ],
)
def test_args_are_said_in_a_line(args, said):
    assert seen(enqueue(args)).args == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""),
        ({"key": "order-7"}, "key order-7"),
        ({"unique": {}}, "type"),
        ({"unique": UniquePolicy(keys=["type", "args"])}, "type + args"),
        (
            {"unique": BY_USER, "args": {"user_id": 5, "to": {"id": "ü"}}},
            'type + queue + args/to/id="ü" + args.user_id=5',
        ),
        (
            {"unique": BY_USER, "args": [{"user_id": [1], "to": {"id": 1}}]},
            "type + queue + args/to/id=1 + args.user_id=[1]",
        ),
        ({"unique": BY_META, "meta": {"tenant": "t" * 99}}, f'type + meta.tenant="{"t" * 28}…'),
    ],
)
def test_a_key_is_said_in_words(options, said):
    assert seen(enqueue(**options)).key == said


def test_a_key_whose_args_were_pruned_is_said_without_values():
    job = enqueue({"user_id": 5, "to": {"id": 1}}, unique=BY_USER)
    assert seen(job, args={}, payload_pruned=True).key == "type + queue + args/to/id + args.user_id"


def test_a_policy_that_cannot_be_read_is_said_to_be_so():
    assert seen(enqueue(unique={}), unique={"keys": 5}).key == "unknown: its policy cannot be read"


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([], ""),
        (FAILED, "ValueError: last"),
        ([{"code": "timeout", "message": ""}], "timeout"),
        ([{"type": "E", "message": "m" * 99}], f"E: {'m' * 76}…"),
        (["text"], ""),
    ],
)
def test_the_last_error_is_said(errors, said):
    assert seen(enqueue(), errors=errors).error == said


@pytest.mark.parametrize("errors", [{"message": "manually"}, "text", 7])
def test_errors_that_are_no_list_do_no_harm(errors):
    job = enqueue()
    Job.objects.filter(pk=job.pk).update(errors=errors)
    assert list_columns(with_list_columns(Job.objects.all(), ("state",)).get()).error in ("", "manually")


def test_what_is_not_json_is_read_as_far_as_it_goes():
    if connection.vendor == "postgresql":
        pytest.skip("its columns hold JSON only")
    job = enqueue()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {Job._meta.db_table} SET args = %s, errors = %s", ['{"a": ', "[{"])
    short = list_columns(with_list_columns(Job.objects.all(), ("state",)).get(pk=job.pk))
    assert short == ListColumns('{"a": ', "", "")


def test_long_args_are_read_in_part_and_their_key_is_said_without_values():
    args = {"text": "ü" * READ, "user_id": 5, "to": {"id": 1}}
    enqueue(args, unique=BY_USER)
    job = with_list_columns(Job.objects.all(), ("state",)).get()
    assert len(job.args_begin) == READ
    assert "üüü" in list_columns(job).args
    assert len(list_columns(job).args) == LONGEST
    assert list_columns(job).key == "type + queue + args/to/id + args.user_id"


def test_what_postgresql_would_have_to_unpack_is_not_read():
    if connection.vendor != "postgresql":
        pytest.skip("the others read the beginning of a text")
    dice = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    enqueue({"text": [hash((dice, number)) % 2**53 for number in range(module.BIG)]})
    job = with_list_columns(Job.objects.all(), ("state",)).get()
    assert (job.args_begin, list_columns(job).args) == (None, "too long to be shown here")
