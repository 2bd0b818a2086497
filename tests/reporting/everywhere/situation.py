"""A database with a state of every kind: made through the public API, and made older by plain UPDATEs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique import Discard, DuplicateJob, Limit, RetryPolicy, Skip, batch, chain, group, job
from django_ojs_unique.maintenance import inbox, timers
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import CronJob, InboxRequest, Job, LimitOverride, Queue, StoppedRun, WorkerProcess
from django_ojs_unique.ojs.states import KINDS
from django_ojs_unique.reporting.activity import roll_up
from django_ojs_unique.testing import run_jobs, run_one, tick, travel
from tests.support.handlers import declared, forget_all
from tests.support.limits import take
from tests.support.workflows import advance

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SETTINGS = {"EVENTS": True, "FAIR_QUEUES": {"fair": ["args.n"]}}
BY_KEY, BY_LANE = Limit(key=["args.n"], running=1, name="key"), Limit(key=["args.m"], running=1, name="lane")
TWO, ONE = Limit(key=["args.n"], running=2, name="two"), Limit(name="one", running=1)
EXPORTS, RATE = Limit(name="exports", running=1), Limit(name="rate", per_hour=1)


@contextmanager
def handlers() -> Iterator[None]:
    """Declare the only handlers that there are: no test's own ones count."""
    with declared(), override_settings(OJS_UNIQUE=SETTINGS):
        forget_all()
        for type, queue, options in (
            ("mail.send", "mail", {}),
            ("mail.fail", "mail", {"retry": RetryPolicy(max_attempts=3)}),
            ("mail.die", "mail", {}),
            ("mail.bury", "mail", {"retry": RetryPolicy(max_attempts=1, on_exhaustion="dead_letter")}),
            ("mail.skip", "mail", {}),
            ("by.key", "keys", {"limit": BY_KEY}),
            ("by.rate", "keys", {"limit": RATE}),
            ("export", "keys", {"limit": EXPORTS}),
            ("double", "keys", {"limit": [TWO, ONE]}),
            ("fair", "fair", {}),
            ("fair.limited", "fair", {"limit": BY_LANE}),
            ("step", "flow", {}),
            ("step.dies", "flow", {}),
            ("tick", "ticks", {}),
            ("tock", "ticks", {}),
            ("alone", "alone", {}),
        ):
            job(type, queue=queue, **options)(_run)
        yield


def _run(**args: Any) -> Any:
    match args.get("what"):
        case "fail":
            raise ConnectionError("no answer")
        case "die":
            raise Discard("never")
        case "skip":
            raise Skip("nothing to do")
    return args


def enqueue(type: str, *, count: int = 1, back: timedelta | None = None, change: str = "", **options: Any) -> Any:
    """Enqueue jobs, which are ``back`` in time and changed by plain SQL; return the last one."""
    args = {name: options.pop(name) for name in ("n", "m", "what") if name in options}
    for _ in range(count):
        one = Job.objects.enqueue(type, args, **options).job
        age(one, back, change)
    return one


def age(one: Any, back: timedelta | None = None, change: str = "") -> Any:
    """Move a job back in time, and change it by plain SQL."""
    stored = Job._base_manager.filter(pk=one.pk)
    moments = stored.values("created_at", "enqueued_at", "started_at", "finished_at").get()
    if back is not None:
        stored.update(**{name: at - back for name, at in moments.items() if at})
    if change:
        id = Job._meta.pk.get_db_prep_value(one.pk, connection)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {Job._meta.db_table} SET {change} WHERE id = %s", [id])
    return one


def step(n: int) -> dict[str, Any]:
    return {"type": "step", "args": {"n": n}}


def fill() -> None:
    """Write all of it."""
    now = timezone.now()
    _what_ended()
    _what_met_others()
    _workflows()
    _crons(now)
    _what_runs(now)
    _what_is_limited()
    _what_waits(now)
    _around(now)
    for young in Job.objects.filter(state="available", enqueued_at__gt=now - SECOND):
        age(young, 90 * MINUTE)  # so that what it has waited is the same for a while
    for model in (Job, StoppedRun):  # nothing runs out while the tests ask
        model._base_manager.filter(lease_expires_at__gt=now).update(lease_expires_at=now + DAY)
    roll_up("default", now)


def _what_ended() -> None:
    done = enqueue("mail.send", count=3)
    enqueue("mail.skip", what="skip")
    failed, dead = enqueue("mail.die", count=2, what="die"), enqueue("mail.bury", count=2, what="die")
    run_jobs(queues="mail", raise_errors=False)
    age(done, 40 * MINUTE)
    age(failed, 2 * DAY)
    age(dead, 3 * HOUR)
    kept = enqueue("mail.send", unique={"period": "P9D", "states": ["available", "completed"]})
    old = enqueue("mail.send", count=2)
    run_jobs(queues="mail")
    for one in (kept, old):
        age(one, 26 * HOUR)
    prune(Job.objects.filter(pk=kept.pk), timezone.now(), 10, dict.fromkeys(KINDS, DAY))
    enqueue("mail.send", count=2).cancel()  # the other one waits
    expired = enqueue("mail.send", expires_at=timezone.now() + DAY)
    age(expired, change="expires_at = created_at")
    timers.expire(Job.objects.filter(pk=expired.pk), timezone.now())
    enqueue("mail.fail", count=3, what="fail")
    run_jobs(queues="mail", types=["mail.fail"], raise_errors=False)
    due = Job.objects.filter(type="mail.fail").first()
    age(due, HOUR, "run_at = started_at")


def _what_met_others() -> None:
    for strategy in ("ignore", "reject", "replace"):
        options = {"queue": "dup", "unique": {"keys": ["args"], "on_conflict": strategy}, "n": strategy}
        for _ in range(3):
            with suppress(DuplicateJob):
                enqueue("mail.send", **options)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM django_ojs_unique_suppressedenqueue ORDER BY id")
        (first,) = cursor.fetchone()
        moment = connection.ops.adapt_datetimefield_value(timezone.now() - 2 * HOUR)
        cursor.execute("UPDATE django_ojs_unique_suppressedenqueue SET created_at = %s WHERE id = %s", [moment, first])
    twice = {"queue": "dup", "unique": {"keys": ["args"]}, "n": "twice"}
    forced = enqueue("mail.die", **twice)
    forced.cancel()
    enqueue("mail.die", **twice)
    forced.retry(force=True)
    enqueue("mail.send", queue="dup", key="of-order-7", count=2)
    enqueue("mail.send", queue="dup", unique={"keys": ["args"]}, n="freed").release_unique_key()


def _workflows() -> None:
    dies = {"type": "step.dies", "args": {"what": "die"}}
    chain(step(1), step(2), name="completed").enqueue()
    batch([step(1), dies], on_failure=step(3), on_success=step(4), name="called back").enqueue()
    chain(step(1), dies, step(2), name="failed").enqueue()
    chain(step(1), group([step(2), step(3)]), name="nested, completed").enqueue()
    run_jobs(queues="flow", raise_errors=False)
    cancelled = group([step(1), step(2), step(3)], name="cancelled").enqueue()
    run_one(queues="flow")
    cancelled.cancel()
    chain(step(1), batch([step(2), step(3)], on_complete=step(4)), step(5), name="nested, running").enqueue()
    run_one(queues="flow")
    group([dies, step(6)], name="running, one failed").enqueue()
    run_one(queues="flow", types=["step.dies"], raise_errors=False)
    chain(step(7), step(8), name="waiting").enqueue()
    advance()


def _crons(now: datetime) -> None:
    for name, type in (("fires", "tick"), ("skips", "tock"), ("off", "tick"), ("due", "tick"), ("never", "tick")):
        CronJob.objects.define(name, "* * * * *", type, {"n": name})
    for minutes in (3, 2, 1):  # the first job of "skips" waits, so its next two occurrences are skipped
        CronJob.objects.filter(name__in=["fires", "skips"]).update(next_run_at=now - 9 * MINUTE)
        with travel(-minutes * MINUTE):
            tick()
            run_jobs(types=["tick"])
    CronJob.objects.update(next_run_at=now + DAY)
    CronJob.objects.filter(name="off").update(enabled=False)
    CronJob.objects.filter(name="never").update(next_run_at=None)
    CronJob.objects.filter(name="due").update(next_run_at=now - 2 * MINUTE)


def _what_runs(now: datetime) -> None:
    runs = enqueue("mail.send", queue="runs", count=5)
    live, lost, stopped, unconfirmed, replaced = take(10, queues=["runs"])
    assert runs.pk == replaced.pk
    age(live, 10 * MINUTE)
    age(lost, HOUR, "lease_expires_at = started_at, worker_id = 'silent'")
    age(unconfirmed, change="unconfirmed = TRUE")
    for one in (stopped, replaced):
        Job.objects.get(pk=one.pk).cancel()
    with connection.cursor() as cursor:
        end = connection.ops.adapt_datetimefield_value(now - HOUR)
        id = Job._meta.pk.get_db_prep_value(replaced.pk, connection)
        cursor.execute("UPDATE django_ojs_unique_stoppedrun SET lease_expires_at = %s WHERE job_id = %s", [end, id])


def _what_is_limited() -> None:
    for n, count in ((1, 3), (2, 2)):
        enqueue("by.key", n=n, count=count, back=20 * MINUTE)
    enqueue("by.key", n=2, priority=-5, back=5 * HOUR)
    enqueue("by.key", n=1, priority=5, back=25 * MINUTE)
    enqueue("export", count=3, back=30 * MINUTE)
    enqueue("by.rate", count=2, back=35 * MINUTE)
    enqueue("double", n=1, count=4, back=45 * MINUTE)
    for n, priority, hours in ((1, 0, 1), (1, -5, 4), (1, 5, 2), (2, 0, 3), (2, -1, 6)):
        enqueue("fair", n=n, priority=priority, back=hours * HOUR)
    for n in (1, 2):
        enqueue("fair.limited", n=n, m="one", count=2, back=10 * MINUTE)
    for _ in range(2):
        take(20, queues=["keys"])
        take(3, queues=["fair"], types=["fair.limited"])
    take(1, queues=["fair"], types=["fair"])
    for one in Job.objects.filter(type="by.rate", state="active"):
        one.cancel()
    enqueue("by.key", n=1, back=15 * MINUTE)  # no worker has looked at these yet
    enqueue("by.key", n=3, priority=-9, back=2 * HOUR)
    LimitOverride.objects.set("exports", running=1, rate=None)
    LimitOverride.objects.set("of-operator", running=7)


def _what_waits(now: datetime) -> None:
    enqueue("mail.send", back=2 * MINUTE)
    enqueue("mail.send", priority=-5, back=3 * HOUR)
    enqueue("mail.send", priority=9, back=HOUR)
    age(enqueue("mail.send", expires_at=now + DAY), back=7 * HOUR, change="expires_at = enqueued_at")
    enqueue("mail.send", scheduled_at=now + DAY, count=2)
    due = enqueue("mail.send", scheduled_at=now + DAY)
    age(due, HOUR, "run_at = created_at, scheduled_at = created_at")
    age(enqueue("mail.send", scheduled_at=now + DAY), change="state = 'pending', run_at = NULL, scheduled_at = NULL")
    enqueue("removed.with.its.app", queue="mail", back=MINUTE)
    enqueue("written.in.go", queue="alone", count=2, back=50 * MINUTE)
    enqueue("alone", back=9 * MINUTE)
    enqueue("mail.send", queue="paused", count=2, back=3 * MINUTE)
    enqueue("mail.send", queue="paused-alone", back=4 * MINUTE)
    enqueue("mail.send", queue="later", scheduled_at=now + HOUR)


def _around(now: datetime) -> None:
    for name in ("paused", "paused-alone", "paused-empty"):
        Queue.objects.pause(name)
    Queue.objects.limit("runs", 7)
    Queue.objects.limit("limited-empty", 3)
    Queue.objects.rate_limit("keys", 50)
    every = ["mail", "keys", "fair", "flow", "runs", "dup", "ticks", "paused"]
    for name, state, queues, heard in (
        ("w", "running", every, SECOND),
        ("running", "running", ["mail", "!alone"], 2 * SECOND),
        ("quiet", "quiet", ["alone"], SECOND),
        ("stopping", "stopping", ["alone"], SECOND),
        ("silent", "running", ["alone"], 4 * HOUR),
        ("silent-quiet", "quiet", ["alone"], 5 * HOUR),
    ):
        WorkerProcess.objects.create(
            id=name,
            hostname="host",
            pid=7,
            queues=queues,
            concurrency=4,
            state=state,
            started_at=now - DAY,
            heartbeat_at=now - heard,
            claimed=3,
            finalized=12,
        )
    InboxRequest.objects.create(type="mail.send", options={"nonsense": 1})
    InboxRequest.objects.create(action="remove", options={})
    inbox.decide(Job.objects.using("default"))
    for _ in range(3):
        InboxRequest.objects.create(type="mail.send", requested_at=now - 2 * HOUR)
