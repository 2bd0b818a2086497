"""The rows of each release are brought to the present: they still dedupe and run, and `verify` finds them in order."""

import json
from dataclasses import dataclass

import pytest
from django.apps import apps
from django.core.management.color import no_style
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from django_ojs_unique import DuplicateJob, job
from django_ojs_unique.db import capabilities
from django_ojs_unique.db.capabilities import STRONG, strength
from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import CronJob, Event, Job, SuppressedEnqueue
from django_ojs_unique.operations.integrity.verify import verify
from django_ojs_unique.testing import run_jobs

from .record import APP, FOLDER, record

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = (APP, "ojs_")


@dataclass
class Release:
    """What a release has left behind: the name of its last migration, and rows by model."""

    migration: str
    rows: list[tuple[str, dict]]

    @classmethod
    def of(cls, path):
        first, *rest = map(json.loads, path.read_text().splitlines())
        return cls(first["migration"], [(line["model"], line["columns"]) for line in rest])

    def load(self, apps):
        """Insert the rows by the models of the time."""
        for name, columns in self.rows:
            model = apps.get_model(APP, name)
            fields = {field.attname: field for field in model._meta.concrete_fields}
            model(**{name: fields[name].to_python(value) for name, value in columns.items()}).save(force_insert=True)
        models = [apps.get_model(APP, name) for name in {name for name, _ in self.rows}]
        with connection.cursor() as cursor:
            for statement in connection.ops.sequence_reset_sql(no_style(), models):
                cursor.execute(statement)


RELEASES = {path.stem: Release.of(path) for path in sorted(FOLDER.glob("*.jsonl"))}


@pytest.fixture
def migrate():
    """Bring the tables of the app to a migration, None for none at all; return the models as they are then."""

    def to(migration):
        executor = MigrationExecutor(connection)
        executor.migrate([(APP, migration)])
        connection.close()  # which may have prepared statements for tables that are gone
        capabilities.forget()
        return MigrationLoader(connection).project_state((APP, migration)).apps if migration else None

    yield to
    to(latest())


def latest():
    ((_, name),) = MigrationLoader(connection).graph.leaf_nodes(APP)
    return name


def tables():
    return {name for name in connection.introspection.table_names() if name.startswith(TABLES)}


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_what_a_release_left_is_carried_on(release, migrate, handlers):
    migrate(None)
    release.load(migrate(release.migration))
    migrate(latest())
    carry_on(release)


@pytest.mark.slow
def test_what_the_present_leaves_can_be_recorded(tmp_path, handlers):
    carry_on(Release.of(record("next", tmp_path)))


@pytest.mark.slow
def test_the_migrations_are_undone_and_done_again(migrate):
    before = tables()
    Job.objects.enqueue("t", unique={})
    migrate(None)
    assert tables() == set()
    migrate(latest())
    assert tables() == before
    assert strength(Job, "default") == STRONG
    Job.objects.enqueue("t", unique={})
    with pytest.raises(DuplicateJob):
        Job.objects.enqueue("t", unique={})


def carry_on(release):
    """Use what is stored as its users would."""
    assert not verify(Job.objects.all()).counts
    assert strength(Job, "default") == STRONG
    models = apps.get_app_config(APP).get_models()
    stored = {model.__name__: model.objects.count() for model in models}
    assert stored == {name: [one for one, _ in release.rows].count(name) for name in stored}
    refused = [row for row in Job.objects.all() if meets_its_duplicates(row)]
    assert SuppressedEnqueue.objects.count() == stored["SuppressedEnqueue"] + len(refused)
    assert refused
    waiting = sum(one == "InboxRequest" and row["refused_at"] is None for one, row in release.rows)
    assert inbox.decide(Job.objects.all()).count == waiting
    run_what_waits()
    assert not verify(Job.objects.all()).counts
    assert Event.objects.filter(position=None).exists()
    assert len(Event.objects.follow(limit=1000).events) == stored["Event"]
    Job.objects.filter(type="up.failed").order_by("pk")[0].retry()
    assert CronJob.objects.get().cron.next_after(CronJob.objects.get().created_at)


def meets_its_duplicates(row):
    """Enqueue a job again: it meets the stored one as long as that counts. Return whether it was refused."""
    if row.key is not None:
        assert Job.objects.enqueue(row.type, key=row.key, key_mode="preserve_run_at").job.pk == row.pk
        return False
    policy = row.unique_policy
    if policy is None or row.state not in policy.states:
        return False
    assert row in Job.objects.duplicates_of(row.fingerprint, policy)
    if row.payload_pruned:  # nobody knows its arguments any more
        return False
    again = {**row.unique, "on_conflict": "reject"}
    with pytest.raises(DuplicateJob) as refusal:
        Job.objects.enqueue(row.type, row.args, queue=row.queue, meta=row.meta, unique=again)
    assert refusal.value.existing_job_id == row.pk
    return True


def run_what_waits():
    """Run what is due, the job of a worker that has died included."""

    def handle(*args, **kwargs):
        return "ran"

    due = Job.objects.filter(state__in=["available", "active"])
    wanted = set(due.values_list("pk", flat=True))
    for type in set(Job.objects.values_list("type", flat=True)):
        job(type)(handle)
    assert {ran.job.pk for ran in run_jobs()} == wanted
    assert wanted
    assert {row.result for row in Job.objects.filter(pk__in=wanted)} == {"ran"}
