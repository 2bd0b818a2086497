"""On a PostgreSQL connection that prepares statements, one statement looks and inserts."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import DuplicateJob
from django_ojs_unique.models import Job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="about a PostgreSQL driver option"),
]
ARGS = {"text": "é\u2028", "n": [1, 1.5, None, {"deep": [True]}]}


@pytest.fixture(autouse=True)
def prepared(transactional_db):
    """Reconnect with the two options."""
    before = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {**before, "server_side_binding": True, "prepare_threshold": 0}
    connection.close()
    yield
    connection.settings_dict["OPTIONS"] = before
    connection.close()


def enqueue(**options):
    return Job.objects.enqueue("t", ARGS, **{"unique": {"keys": ["args"]}, **options})


def test_a_new_job_takes_one_statement_and_is_stored_as_it_was_given():
    with CaptureQueriesContext(connection) as queries:
        job = enqueue(meta={"a": 1}, tags=["x"], priority=5, scheduled_at=timezone.now() + timedelta(hours=1)).job
    assert len(queries) == 1
    stored = Job.objects.get()
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(job, field.attname), field.name


@pytest.mark.parametrize("period", [None, "PT1H", "P1M"])
def test_a_duplicate_takes_one_statement_beside_its_record(settings, period):
    settings.OJS_UNIQUE = {"RECORD_SUPPRESSED": False}
    unique = {"keys": ["args"], "period": period}
    first = enqueue(unique=unique).job
    with CaptureQueriesContext(connection) as queries:
        ignored = enqueue(unique={**unique, "on_conflict": "ignore"})
        with pytest.raises(DuplicateJob) as caught:
            enqueue(unique=unique)
    assert len(queries) == 2
    assert (ignored.job, ignored.deduplicated) == (first, True)
    assert (caught.value.existing_job_id, caught.value.existing_job_state) == (first.pk, "available")


def test_a_replacement_and_a_stale_guard_are_settled():
    first = enqueue().job
    second = enqueue(unique={"keys": ["args"], "on_conflict": "replace"})
    assert [job.pk for job in second.replaced] == [first.pk]
    Job.objects.filter(pk=second.job.pk).update(created_at=timezone.now() - timedelta(hours=2))
    third = enqueue(unique={"keys": ["args"], "period": "PT1H"})
    assert third.created
    assert not Job.objects.get(pk=second.job.pk).is_guarding
