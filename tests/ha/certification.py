"""Two Galera nodes that are asked for the same thing at once: who is told, when, and how."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import OperationalError, connections, transaction
from django.utils import timezone

from django_ojs_unique.db.capabilities import unique_jobs
from django_ojs_unique.db.transactions import is_transient
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.idempotency import locked
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker.loop import LEASE
from tests.support.audit import ask, audit
from tests.support.processes import together

from .galera import Cluster
from .load import ONCE, WHILE_IT_WAITS
from .servers import Failed

ROUNDS = 60
NODES = ("default", "second")
WAYS: dict[str, Callable[[int, str], str]] = {
    "in a transaction of its own": lambda key, using: ask("t", {"a": key}, unique=ONCE, using=using).outcome,
    "by the shortest way": lambda key, using: ask("t", {"b": key}, unique=WHILE_IT_WAITS, using=using).outcome,
    "by key": lambda key, using: str(Job.objects.using(using).enqueue("t", {"c": key}, key=f"c{key}").outcome),
    "in a batch": lambda key, using: str(
        Job.objects.using(using).enqueue_many([{"type": "t", "args": {"d": key}, "unique": ONCE}]).results[0].outcome
    ),
}


def certify(cluster: Cluster) -> None:
    """Try each of them; raise Failed for what must not be."""
    second = cluster.nodes[1]
    connections.settings["second"] = {**connections.settings["default"], "PORT": str(second.port)}
    cluster.catch_up()
    for name in NODES:
        print(f"{name}: {unique_jobs(Job, name)}")
    in_the_callers_transaction()
    for what, way in WAYS.items():
        both_at_once(cluster, what, way)
    claims(cluster)
    what_is_local()
    for name in NODES:
        audit(name)
    cluster.agree()


def in_the_callers_transaction() -> None:
    """Both nodes admit; the second commit fails, and takes with it all that the caller wrote."""
    with ExitStack() as stack:
        stack.enter_context(transaction.atomic(using="second"))
        Job.objects.using("second").enqueue("beside", unique=None)
        late = ask("t", {"callers": 1}, unique=ONCE, using="second")
        early = ask("t", {"callers": 1}, unique=ONCE)
        check((early.outcome, late.outcome) == ("created", "created"), "both were admitted")
        error = _failure_of(stack.close)
    check(error is not None and error.__cause__.args[0] == 1213 and is_transient(error), f"1213, not {error!r}")
    check(not Job.objects.filter(type="beside").exists(), "the caller's other writes are gone, too")
    with transaction.atomic(using="second"):
        again = ask("t", {"callers": 1}, unique=ONCE, using="second")
    check((again.outcome, again.id) == ("deduplicated", early.id), "the caller that starts over is told")
    print(f"in a caller's transaction: both are told 'created'; the later commit raises {error}")


def both_at_once(cluster: Cluster, what: str, way: Callable[[int, str], str]) -> None:
    """Two processes on each node enqueue the same key at once, and nobody else helps."""
    before = conflicts(cluster)
    rounds = together([partial(way, using=name) for name in (*NODES, *NODES)], rounds=ROUNDS)
    wrong = [answers for answers in rounds if answers.count("created") != 1]
    check(not wrong, f"{what}: one of each four is created, not {wrong}")
    print(
        f"outside of one, {what}: {ROUNDS} keys, each created once; {conflicts(cluster) - before} conflicts, no error"
    )


def claims(cluster: Cluster) -> None:
    """Two workers on two nodes take the same jobs; what one has, no other has."""
    Job.objects.all().delete()
    Job.objects.enqueue_many([{"type": "claimed", "args": {"n": n}} for n in range(10 * ROUNDS)])
    before = conflicts(cluster)
    rounds = together([partial(take, name) for name in NODES], rounds=ROUNDS)
    taken = [pk for answers in rounds for keys in answers for pk in keys or ()]
    failed = sum(keys is None for answers in rounds for keys in answers)
    check(taken and len(taken) == len(set(taken)), "no job is claimed twice")
    active = Job.objects.filter(state="active").count()
    check(active == len(taken), f"all {len(taken)} are active, not {active}")
    print(f"claims: {len(taken)} jobs, none twice; {failed} of {2 * ROUNDS} were told to start over;", end=" ")
    print(f"{conflicts(cluster) - before} conflicts")


def take(using: str, number: int) -> list[Any] | None:
    """Claim as a worker does, which takes a transient error for a reason to look again."""
    try:
        return [job.pk for job in _claim(using, "claimed")]
    except OperationalError as error:
        if not is_transient(error):
            raise
        return None


def what_is_local() -> None:
    """Locks: one that is held on a node is free on the other."""
    job = Job.objects.enqueue("t").job
    with locked(Job.objects.filter(pk=job.pk)), locked(Job.objects.using("second").filter(pk=job.pk)):
        print("locked(): the same row was locked on both nodes at once")
    Queue.objects.limit("narrow", 1)
    for type in ("one", "other"):
        Job.objects.enqueue(type, queue="narrow")
    with transaction.atomic():
        _claim("default", "one", "narrow")
        _claim("second", "other", "narrow")
    active = Job.objects.filter(queue="narrow", state="active").count()
    check(active == 2, "the page says that the limit is not kept")
    print(f"a queue that is limited to 1 runs {active} jobs")


def _claim(using: str, type: str, queue: str = "default") -> list[Any]:
    jobs = Job.objects.using(using)
    now = timezone.now()
    return claim(jobs, queues=[queue], types=[type], limit=5, worker_id=using, lease=LEASE, now=now)


def conflicts(cluster: Cluster) -> int:
    """Return how often a node has given up a transaction because of another node's."""
    names = ("wsrep_local_cert_failures", "wsrep_local_bf_aborts")
    return sum(int(node.status(name)) for node in cluster.nodes for name in names)


def _failure_of(step: Callable[[], object]) -> Any:
    try:
        step()
    except OperationalError as error:
        return error
    return None


def check(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)
