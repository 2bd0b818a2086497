"""A job is stored by its enqueue and moved by its methods only; whoever writes the row itself is told what to call."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models.signals import pre_save
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from django_ojs_unique import InvalidRequest, JobState
from django_ojs_unique.lifecycle import OWNED, write
from django_ojs_unique.models import Job
from tests.support.jobs import claim, row
from tests.support.refusals import refused
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
    "save of a copy": lambda: copied(insert(**FIELDS), adding=False).save(),
    "bulk_create": lambda: Job.objects.bulk_create([Job(**FIELDS)]),
    "bulk_create of a selection": lambda: Job.objects.filter(type="t").bulk_create([Job(**FIELDS)], batch_size=5),
}


def copied(job, adding=True):
    """Copy a row as Django's documentation does."""
    job.pk, job._state.adding = None, adding
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
    assert Job.objects.exclude(type="after").count() == (way in (WAYS["save again"], WAYS["save of a copy"]))


@pytest.mark.parametrize("name", ["acreate", "aget_or_create", "aupdate_or_create"])
def test_asynchronous_code_is_refused_as_well(name):
    with refused(InvalidRequest, names="Job.objects.enqueue"):
        async_to_sync(getattr(Job.objects.all(), name))(**FIELDS)


def test_a_stored_job_is_found_and_saved_as_ever():
    job = Job.objects.enqueue("t").job
    job.priority = 5
    job.save(update_fields=["priority"])
    assert Job.objects.get_or_create(type="t") == (job, False)
    assert Job.objects.update_or_create(type="t", defaults={"priority": 7}) == (job, False)
    assert Job.objects.get().priority == 7


def test_a_fixture_is_loaded_with_the_unique_key_of_its_jobs(tmp_path):
    job = Job.objects.enqueue("t", {"n": 1}, unique={"keys": ["args"]}).job
    file = tmp_path / "jobs.json"
    file.write_text(serializers.serialize("json", Job.objects.all()))
    Job.objects.all().delete()
    call_command("loaddata", file, verbosity=0)
    assert Job.objects.get().pk == job.pk
    assert Job.objects.enqueue("t", {"n": 1}, unique={"keys": ["args"], "on_conflict": "ignore"}).deduplicated
    with pytest.raises(IntegrityError), transaction.atomic():
        insert(**FIELDS, fingerprint=job.fingerprint, unique_states=job.unique_states)


@pytest.mark.parametrize("name", sorted(OWNED))
@pytest.mark.parametrize("way", ["update", "bulk_update", "save of the field", "of a selection"])
def test_an_owned_field_is_not_updated_and_the_hint_is_named(name, way):
    job = Job.objects.enqueue("t").job
    before = Job.objects.values().get()
    value = OTHER.get(name, "cancelled" if name == "state" else 7)
    setattr(job, Job._meta.get_field(name).attname, value)
    ways = {
        "update": lambda: Job.objects.update(**{name: value}),
        "bulk_update": lambda: Job.objects.bulk_update([job], [name]),
        "save of the field": lambda: job.save(update_fields=[name]),
        "of a selection": lambda: Job.objects.filter(type="t").order_by("pk").update(priority=1, **{name: value}),
    }
    with pytest.raises(InvalidRequest) as caught, transaction.atomic():
        ways[way]()
    assert caught.value.details["field"] in (name, f"{name}_id")
    assert Job.objects.values().get() == before


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
OTHER = {
    **dict.fromkeys(("fingerprint", "key", "worker_id"), "x"),
    **dict.fromkeys(("lease_token", "replaced_by"), uuid4()),
    **dict.fromkeys(("dead_letter", "payload_pruned"), True),
    "unique": {"keys": ["type"]},
    "unique_states": frozenset({JobState.ACTIVE}),
    **{name: MOMENT for name in OWNED if name.endswith("_at")},
}


@pytest.mark.parametrize(
    ("state", "way"),
    [
        ("cancelled", "Job.objects.filter(...).cancel()"),
        (JobState.CANCELLED, "job.cancel()"),
        ("available", "job.retry() or Job.objects.filter(...).retry()"),
        ("completed", "run_jobs()"),
    ],
)
def test_the_hint_of_a_state_is_the_move_to_it(state, way):
    job = Job.objects.enqueue("t", scheduled_at=timezone.now() + timedelta(days=1)).job
    with refused(InvalidRequest, "state", names=way):
        Job.objects.filter(pk=job.pk).update(state=state)
    job.state = state
    with refused(InvalidRequest, "state", names=way) as caught:
        job.save()
    assert "save(update_fields=" in caught.value.message


def test_asynchronous_code_does_not_write_an_owned_field_either():
    job = Job.objects.enqueue("t").job
    with refused(InvalidRequest, "state", names="job.cancel()"):
        async_to_sync(Job.objects.all().aupdate)(state="cancelled")
    job.state = "cancelled"
    with refused(InvalidRequest, "state", names="job.cancel()"):
        async_to_sync(job.asave)()


def test_a_job_that_a_worker_took_meanwhile_keeps_what_the_worker_wrote():
    job = Job.objects.enqueue("t").job
    claim(job)
    job.priority = 9
    with refused(InvalidRequest, "state", names="active"):
        job.save()
    job.save(update_fields=["priority"])
    assert Job.objects.values_list("state", "priority", "attempt").get() == ("active", 9, 1)


def test_what_a_worker_writes_between_the_look_and_the_save_stays():
    job = Job.objects.enqueue("t").job

    def work(**options):
        write(row(job), attempt=1, worker_id="w")

    pre_save.connect(work, sender=Job)
    try:
        job.save()
    finally:
        pre_save.disconnect(work, sender=Job)
    assert Job.objects.values_list("attempt", "worker_id").get() == (1, "w")


def test_other_fields_are_saved_without_a_list_of_them_and_with_deferred_ones():
    Job.objects.enqueue("t", unique={"period": "PT1H"})
    for job in (Job.objects.get(), Job.objects.only("meta").get(), Job.objects.defer("state").get()):
        job.meta = {"seen": len(job.get_deferred_fields())}
        job.save()
        assert Job.objects.get().meta == job.meta
    assert Job.objects.update(priority=3, tags=["a"]) == 1
    with CaptureQueriesContext(connection) as statements:
        job.save(update_fields=["meta"])
    assert len(statements) == 1


@isolate_apps("tests.app")
def test_a_proxy_and_related_jobs_refuse_as_well():
    class Mail(Job):
        class Meta:
            proxy = True
            app_label = "app"

    job = Job.objects.enqueue("t").job
    for jobs in (Mail.objects.all(), Job.objects.get(pk=job.pk).replaces.all()):
        with refused(InvalidRequest, "state", names="job.cancel()"):
            jobs.update(state="cancelled")
