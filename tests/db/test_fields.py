"""A sparse field: its default is NULL in the database, and nobody who uses the model sees that."""

from __future__ import annotations

import pytest
from django.db import connection

from django_ojs_unique.db.fast.rows import RowReader
from django_ojs_unique.models import Job

pytestmark = pytest.mark.django_db
DEFAULTS = {
    "meta": {},
    "tags": [],
    "extra": {},
    "errors": [],
    "schema": "",
    "skipped": "",
    "progress_note": "",
}
OTHERS = {
    "meta": {"a": 1},
    "tags": ["a"],
    "extra": {"a": 1},
    "errors": [{"a": 1}],
    "schema": "urn:a",
    "skipped": "a",
    "progress_note": "a",
}


def null_columns():
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(DEFAULTS)} FROM django_ojs_unique_job")
        return {name for name, value in zip(DEFAULTS, cursor.fetchone(), strict=True) if value is None}


def test_each_default_is_stored_as_null_however_it_is_written():
    job = Job.objects.enqueue("t").job
    assert null_columns() == set(DEFAULTS)
    for write in (lambda values: Job._base_manager.update(**values), lambda values: save(job.pk, values)):
        write(OTHERS)
        assert null_columns() == set()
        assert Job.objects.values(*OTHERS).get() == OTHERS
        write(DEFAULTS)
        assert null_columns() == set(DEFAULTS)
        assert Job.objects.values(*DEFAULTS).get() == DEFAULTS


def save(pk, values):
    job = Job.objects.get(pk=pk)
    for name, value in values.items():
        setattr(job, name, value)
    job.save()


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_job_is_found_by_a_default_and_by_another_value(name):
    empty, full = (Job.objects.enqueue("t").job.pk for _ in range(2))
    Job._base_manager.filter(pk=full).update(**{name: OTHERS[name]})
    for value, expected, rest in ((DEFAULTS[name], empty, full), (OTHERS[name], full, empty)):
        assert Job.objects.values_list("pk", flat=True).get(**{name: value}) == expected
        if name not in ("meta", "tags", "extra", "errors"):
            assert Job.objects.exclude(**{name: value}).values_list("pk", flat=True).get() == rest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        (' {"a": 1}\n', {"a": 1}),
        ("[1] 2", "[1] 2"),
        ("{", "{"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
        ("9" * 5_000, "9" * 5_000),
    ],
    ids=["JSON", "spaces", "two values", "half", "nothing", "too deep", "too long"],
)
def test_text_that_was_written_manually_and_is_no_json_is_read_as_it_is(text, value):
    assert RowReader(Job, connection, ("args",)).read([text]).args == value


def test_a_default_beside_other_values_of_a_batch_is_stored_as_null_too():
    items = [{}, {"meta": {"a": "b"}, "tags": ["x"]}, {"meta": {}, "tags": []}]
    assert Job.objects.enqueue_many({"type": "t", **item} for item in items).counts == {"created": 3}
    for default in ({"meta": {}}, {"tags": []}):
        assert Job.objects.filter(**default).count() == 2, default
