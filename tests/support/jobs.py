"""Enqueue, and put stored jobs into any state the way the system itself would."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from django.db import connection, connections
from django.utils import timezone

from django_ojs_unique import DuplicateJob, JobState
from django_ojs_unique import lifecycle as moves
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ALL_STATES = [str(state) for state in JobState]
DEFAULT_STATES = ["available", "active", "scheduled", "retryable", "pending"]
LEASE = timedelta(seconds=30)


def enqueue(type="t", args=None, **options):
    """Enqueue under a type-only policy with the default strategy, unless told otherwise."""
    return Job.objects.enqueue(type, args, **{"unique": {}, **options})


def attempt(type="t", args=None, **options):
    """Enqueue and return what the caller learns, created, deduplicated, replaced or rejected, and of which job."""
    try:
        result = enqueue(type, args, **options)
    except DuplicateJob as error:
        return "rejected", error.existing_job
    return str(result.outcome), result.job


def outcome(*args, **options):
    return attempt(*args, **options)[0]


def row(job):
    """Select the row of a job with Django's own manager, which writes any field."""
    return Job._base_manager.filter(pk=job.pk)


def fresh(job):
    return row(job).get()


def columns(job):
    """Return every column of a stored row."""
    return row(job).values().get()


def claim(job, token=None):
    token = token or uuid4()
    assert moves.claim(row(job), timezone.now(), worker_id="w", token=token, lease=LEASE) == 1
    return token


def put(job, state):
    """Bring a freshly enqueued job into a state; return it as stored."""
    now = timezone.now()
    job = fresh(job)
    if state in ("scheduled", "pending"):
        run_at = now + DAY if state == "scheduled" else None
        held = job.unique_states if state in job.unique_states else frozenset()
        row(job).update(state=state, scheduled_at=run_at, run_at=run_at, enqueued_at=None, unique_states=held)
    elif state == "cancelled":
        assert moves.cancel(row(job), now) == 1
    elif state != "available":
        token = claim(job)
        if state == "retryable":
            assert moves.schedule_retry(row(job), now + HOUR, token=token, errors=[{"type": "e"}]) == 1
        elif state == "completed":
            assert moves.complete(row(job), now, token=token) == 1
        elif state == "discarded":
            assert moves.discard(row(job), now, token=token, errors=[{"type": "e"}]) == 1
    job = fresh(job)
    assert job.state == state
    assert (job.finished_at is not None) == (state in TERMINAL)
    return job


def stored(state="available", *, age=None, **options):
    """Enqueue a job, bring it into a state and let it be ``age`` old."""
    job = put(enqueue(**options).job, state)
    if age is not None:
        row(job).update(created_at=job.created_at - age)
    return fresh(job)


def live():
    return Job.objects.exclude(state__in=sorted(TERMINAL))


def before_the_insert(act, *, when=lambda: True):
    """Call ``act`` once, before the next INSERT of a job at which ``when`` holds, as if another enqueue were faster.

    Yield the list that will hold its result.
    """
    # On MariaDB the insert waits for its turn first, and nobody could be faster while it holds it.
    beginnings = (f'INSERT INTO "{Job._meta.db_table}"', "SELECT number")
    return _before(lambda statement: statement.startswith(beginnings) and when(), act)


def before_the_look(act):
    """Call ``act`` once, before the next statement that looks for stored jobs; yield as `before_the_insert` does."""
    return _before(lambda statement: "SELECT" in statement and f'FROM "{Job._meta.db_table}"' in statement, act)


@contextmanager
def _before(is_it, act):
    done = []

    def wrapper(execute, sql, params, many, context):
        if not done and is_it(sql.replace("`", '"')):
            done.append(None)
            done[0] = act()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        yield done
    assert done


def elsewhere(act):
    """Call ``act`` in another connection and return its result."""

    def call():
        try:
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
