"""A job is stored by its enqueue only; whoever stores the row itself is told what to write instead."""

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.core.management import call_command
from django.db import IntegrityError, transaction

from django_ojs_unique import InvalidRequest
from django_ojs_unique.models import Job
from tests.support.rows import insert

pytestmark = pytest.mark.django_db

FIELDS = {"type": "t", "queue": "q"}

WAYS = {
    "create": lambda: Job.objects.create(**FIELDS),
    "create elsewhere": lambda: Job.objects.using("default").create(**FIELDS),
    "get_or_create": lambda: Job.objects.get_or_create(**FIELDS),
    "update_or_create": lambda: Job.objects.update_or_create(**FIELDS),
    "save": lambda: Job(**FIELDS).save(),
    "save with an option": lambda: Job(**FIELDS).save(force_insert=True),
    "save again": lambda: copied(insert(**FIELDS)).save(),
    "bulk_create": lambda: Job.objects.bulk_create([Job(**FIELDS)]),
    "bulk_create of a selection": lambda: Job.objects.filter(type="t").bulk_create([Job(**FIELDS)], batch_size=5),
}


def copied(job):
    """Copy a row as Django's documentation does."""
    job.pk, job._state.adding = None, True
    return job


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_row_without_an_enqueue_is_refused_with_the_way_out(way):
    with transaction.atomic():
        with pytest.raises(InvalidRequest) as caught:
            way()
        assert Job.objects.enqueue("after").created
    many = "bulk" in caught.traceback[-1].name
    assert caught.value.message.endswith(
        "Write Job.objects.enqueue_many([...])." if many else "Write Job.objects.enqueue(type, args)."
    )
    assert Job.objects.exclude(type="after").count() == (way is WAYS["save again"])


@pytest.mark.parametrize("name", ["acreate", "aget_or_create", "aupdate_or_create"])
def test_asynchronous_code_is_refused_as_well(name):
    with pytest.raises(InvalidRequest, match="enqueue"):
        async_to_sync(getattr(Job.objects.all(), name))(**FIELDS)


def test_a_stored_job_is_found_and_saved_as_ever():
    job = Job.objects.enqueue("t").job
    job.priority = 5
    job.save(update_fields=["priority"])
    assert Job.objects.get_or_create(type="t") == (job, False)
    assert Job.objects.update_or_create(type="t", defaults={"priority": 7}) == (job, False)
    assert Job.objects.get().priority == 7


def test_a_fixture_is_loaded_with_the_guard_of_its_jobs(tmp_path):
    job = Job.objects.enqueue("t", {"n": 1}, unique={"keys": ["args"]}).job
    file = tmp_path / "jobs.json"
    file.write_text(serializers.serialize("json", Job.objects.all()))
    Job.objects.all().delete()
    call_command("loaddata", file, verbosity=0)
    assert Job.objects.get().pk == job.pk
    assert Job.objects.enqueue("t", {"n": 1}, unique={"keys": ["args"], "on_conflict": "ignore"}).deduplicated
    with pytest.raises(IntegrityError), transaction.atomic():
        insert(**FIELDS, fingerprint=job.fingerprint, guarded_states=job.guarded_states)
