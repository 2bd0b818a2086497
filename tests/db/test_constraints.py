"""What the database itself promises, to every write path."""

from uuid import uuid4

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import JobState, lifecycle
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL, from_mask, to_mask
from tests.support.jobs import ALL_STATES, LEASE, attempt, enqueue, fresh, outcome, row, stored
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db

TABLE = Job._meta.db_table
FINGERPRINT = "f" * 64


def raw(sql, *params):
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def parameter(field, value):
    return Job._meta.get_field(field).get_db_prep_value(value, connection)


def unsaved(state="available", holds=(), fingerprint=FINGERPRINT, **fields):
    finished = timezone.now() if state in TERMINAL else None
    return Job(
        type="t",
        queue="default",
        state=state,
        fingerprint=fingerprint,
        unique_states=frozenset(map(JobState, holds)),
        finished_at=finished,
        **fields,
    )


def insert_raw(job):
    """INSERT a row by SQL of our own."""
    job.created_at = timezone.now()
    fields = [field for field in Job._meta.concrete_fields if getattr(job, field.attname) is not None]
    places = ", ".join(["%s"] * len(fields))
    columns = ", ".join(connection.ops.quote_name(field.column) for field in fields)
    values = [field.get_db_prep_save(getattr(job, field.attname), connection) for field in fields]
    raw(f"INSERT INTO {TABLE} ({columns}) VALUES ({places})", *values)


WRITE_PATHS = {
    "fixture": lambda job: job.save_base(raw=True, force_insert=True),
    "bulk_create": lambda job: insert_all([job]),
    "raw-insert": insert_raw,
    "queryset-update": lambda job: (
        insert_all([unsaved(fingerprint=None, id=job.pk)]),
        Job._base_manager.filter(pk=job.pk).update(
            state=job.state, fingerprint=job.fingerprint, unique_states=job.unique_states, finished_at=job.finished_at
        ),
    ),
    "raw-update": lambda job: (
        insert_all([unsaved(fingerprint=None, id=job.pk)]),
        raw(
            f"UPDATE {TABLE} SET state = %s, fingerprint = %s, unique_states = %s, finished_at = %s WHERE id = %s",
            str(job.state),
            job.fingerprint,
            to_mask(job.unique_states),
            parameter("finished_at", job.finished_at),
            parameter("id", job.pk),
        ),
    ),
}


def is_refused(write, job):
    try:
        with transaction.atomic():
            write(job)
    except IntegrityError:
        return True
    return False


@pytest.mark.parametrize("write", WRITE_PATHS.values(), ids=WRITE_PATHS)
@pytest.mark.parametrize("state", ALL_STATES)
def test_a_second_row_that_holds_the_key_is_refused_by_any_write_path(write, state):
    insert_all([unsaved(state, ALL_STATES)])
    assert is_refused(write, unsaved("available", ["available"]))
    assert not is_refused(write, unsaved("available", ["available"], "e" * 64))


@pytest.mark.parametrize("write", WRITE_PATHS.values(), ids=WRITE_PATHS)
def test_a_row_that_holds_no_key_is_accepted_by_any_write_path(write):
    insert_all([unsaved("available", ALL_STATES)])
    assert not is_refused(write, unsaved("available", ["active"]))
    assert not is_refused(write, unsaved("completed", ["available"]))
    assert not is_refused(write, unsaved("available", []))


@pytest.mark.parametrize("held", ALL_STATES)
@pytest.mark.parametrize("state", ALL_STATES)
def test_a_row_holds_its_key_exactly_in_its_unique_states(state, held):
    first = unsaved(state, [held])
    insert_all([first])
    assert first.holds_unique_key is (state == held)
    assert is_refused(WRITE_PATHS["fixture"], unsaved("available", ["available"])) is (state == held)


@pytest.mark.parametrize("state", ALL_STATES)
def test_a_row_whose_unique_states_are_all_others_does_not_hold_its_key(state):
    insert_all([unsaved(state, [other for other in ALL_STATES if other != state])])
    assert not is_refused(WRITE_PATHS["fixture"], unsaved("available", ["available"]))


def test_one_bulk_create_cannot_hold_two_unique_keys():
    jobs = [unsaved("available", ALL_STATES) for _ in range(2)]
    assert is_refused(lambda _: insert_all(jobs), None)
    assert not Job.objects.exists()


def test_rows_without_a_fingerprint_are_never_in_each_others_way():
    insert_all([unsaved(fingerprint=None) for _ in range(3)])
    assert Job.objects.count() == 3


def update_raw(job, changes):
    changes = dict(changes)
    if changes.get("finished_at") == "now":
        changes["finished_at"] = parameter("finished_at", timezone.now())
    assignments = ", ".join(f"{name} = %s" for name in changes)
    return raw(f"UPDATE {TABLE} SET {assignments} WHERE id = %s", *changes.values(), parameter("id", job.pk))


@pytest.mark.slow
@pytest.mark.parametrize("state", [*ALL_STATES, "running", ""])
def test_a_state_that_is_set_by_raw_sql_keeps_exactly_the_keys_that_it_holds(state):
    """For each of the 256 sets of states; a state that does not exist keeps none."""
    names = [f"{mask:064x}" for mask in range(256)]
    insert_all(unsaved("available", from_mask(mask), name) for mask, name in enumerate(names))
    raw(f"UPDATE {TABLE} SET state = %s", state)
    rivals = [unsaved("available", ["available"], name) for name in names]
    insert_all(rivals, ignore_conflicts=True)
    admitted = set(Job.objects.filter(pk__in=[job.pk for job in rivals]).values_list("fingerprint", flat=True))
    bit = JobState(state).bit if state in ALL_STATES else 0
    assert admitted == {name for mask, name in enumerate(names) if not mask & bit}


def test_no_write_pays_for_a_check():
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, TABLE)
    assert [name for name, one in found.items() if one["check"]] == []


@pytest.mark.parametrize("state", ALL_STATES)
@pytest.mark.parametrize(
    "delete", [lambda job: job.delete(), lambda job: row(job).delete()], ids=["instance", "queryset"]
)
def test_deleting_the_holder_frees_the_key(state, delete):
    unique = {"states": ALL_STATES}
    delete(stored(state, unique=unique))
    assert outcome(unique=unique) == "created"


def test_deleting_the_holder_by_raw_sql_frees_the_key():
    raw(f"DELETE FROM {TABLE} WHERE id = %s", parameter("id", enqueue().job.pk))
    assert outcome() == "created"


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "completed", "finished_at": "now"},
        {"state": "completed"},
        {"state": "discarded"},
        {"state": "running"},
    ],
    ids=repr,
)
def test_moving_the_holder_out_of_its_states_by_raw_sql_frees_the_key(changes):
    update_raw(enqueue().job, changes)
    assert outcome() == "created"


def test_taking_the_unique_key_by_raw_sql_does_not_hide_a_duplicate():
    job = enqueue().job
    update_raw(job, {"unique_states": 0})
    assert attempt() == ("rejected", job)


def test_a_unique_key_that_was_set_manually_never_breaks_an_enqueue():
    """The query decides meaning: a row that is no duplicate loses its unique key to the newcomer."""
    job = stored("completed")
    update_raw(job, {"unique_states": to_mask(JobState)})
    assert outcome() == "created"
    assert fresh(job).unique_states == frozenset()


@pytest.mark.parametrize("state", ALL_STATES)
def test_a_job_whose_key_is_released_takes_no_more_part_in_uniqueness(state):
    unique = {"states": ALL_STATES}
    job = stored(state, unique=unique)
    fingerprint = job.fingerprint
    assert job.release_unique_key() is True
    assert job.release_unique_key() is False
    assert job.state == state
    assert not is_refused(WRITE_PATHS["fixture"], unsaved("available", ["available"], fingerprint))
    Job.objects.exclude(pk=job.pk).delete()
    assert outcome(unique=unique) == "created"
    assert fresh(job).state == state


def test_a_unique_key_left_behind_is_never_taken_back():
    job = enqueue(unique={}).job
    token = uuid4()
    lifecycle.claim(row(job), timezone.now(), worker_id="w", token=token, lease=LEASE)
    lifecycle.discard(row(job), timezone.now(), token=token, errors=[])
    assert fresh(job).unique_states == frozenset()
    lifecycle.retry_finished(row(job), timezone.now())
    assert (fresh(job).state, fresh(job).unique_states) == ("available", frozenset())


# how many statements

STATEMENTS = {"sqlite": 1, "postgresql": 1, "mysql": 6}
"""MariaDB looks, unless it would replace what it finds, then finalizes the key in a transaction, under a lock."""


@pytest.mark.parametrize(
    "unique",
    [
        {},
        {"period": "PT1H"},
        {"period": "P1M"},
        {"on_conflict": "replace"},
    ],
    ids=["default", "period", "calendar", "replace"],
)
def test_a_unique_enqueue_without_a_conflict_takes_one_statement_where_one_can_decide(unique, transactional_db):
    with CaptureQueriesContext(connection) as queries:
        assert outcome(unique=unique) == "created"
    expected = STATEMENTS[connection.vendor] - (connection.vendor == "mysql" and "on_conflict" in unique)
    assert len(queries) == expected, [query["sql"] for query in queries]


def test_a_policy_that_counts_finished_jobs_is_finalized_in_one_transaction(transactional_db):
    with CaptureQueriesContext(connection) as queries:
        assert outcome(unique={"states": ALL_STATES, "on_conflict": "ignore"}) == "created"
    expected = {"sqlite": 1, "postgresql": 6, "mysql": 6}
    assert len(queries) == expected[connection.vendor], [query["sql"] for query in queries]


def test_an_enqueue_without_a_policy_does_not_look(transactional_db):
    with CaptureQueriesContext(connection) as queries:
        assert outcome(unique=None) == "created"
    assert [query["sql"][:6] for query in queries] == ["INSERT"]


@pytest.mark.slow
@pytest.mark.parametrize("index", [index.name for index in Job._meta.indexes])
def test_every_declared_index_is_there(index):
    with connection.cursor() as cursor:
        assert index in connection.introspection.get_constraints(cursor, TABLE)


@pytest.mark.parametrize("model", list(apps.get_app_config("django_ojs_unique").get_models()))
def test_where_there_are_no_partial_indexes_no_model_is_warned_of(model, monkeypatch):
    monkeypatch.setattr(connection.features, "supports_partial_indexes", False)
    assert model.check(databases=["default"]) == []
