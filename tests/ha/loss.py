"""What is lost with a primary whose standby did not confirm: shown, not judged."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from django.db import connections

from django_ojs_unique.models import Job
from tests.support.audit import ask
from tests.support.commands import Site

from .load import ONCE
from .postgres import Node
from .servers import Failed, Servers, send

COUNT = 20
LEASE = "2"


def lose(place: Servers, first: Node, second: Node) -> None:
    """Kill a primary of whose last commits the standby knows nothing; then let the old primary come back unfenced."""
    site = Site(place.folder)
    worker = site.runworker("--lease", LEASE, "--concurrency", str(2 * COUNT))
    try:
        held = [Job.objects.enqueue("hold", {"gate": "gate"}).job.pk for _ in range(COUNT)]
        site.wait_for("began", COUNT)
        place.wait(lambda: _behind(first) == 0, "the standby has all of it")
        place.say(f"{COUNT} jobs run; now the standby hears no more from the primary")
        send(first.ask("SELECT pid FROM pg_stat_replication"), signal.SIGSTOP)
        promised = [ask("quick", {"key": key}, unique=ONCE).id for key in range(COUNT)]
        site.open("gate")
        place.wait(lambda: _completed([*promised, *held]) == 2 * COUNT, "all jobs have ended")
        place.say(f"{COUNT} more enqueues were answered; all {2 * COUNT} jobs are completed")
        place.say("kill -9: the primary; promote the standby")
        first.kill()
        second.promote()
        connections.close_all()
        lost = COUNT - Job.objects.filter(pk__in=promised).count()
        again = [ask("quick", {"key": key}, unique=ONCE).outcome for key in range(COUNT)]
        place.wait(lambda: _completed(held) == COUNT, "what was completed is completed once more")
        began = [event.job for event in site.events("began")]
        repeated = sum(began.count(pk) > 1 for pk in held)
        print(f"\nanswered enqueues that are gone: {lost} of {COUNT}")
        print(f"their keys, enqueued again: {again.count('created')} created, so run a second time under another id")
        print(f"completed jobs that ran again: {repeated} of {COUNT}\n")
        new = [ask("quick", {"after": key}, unique=ONCE).outcome for key in range(COUNT)]
        place.say("start the old primary as it was: nobody has fenced it")
        first.start()
        connections.close_all()
        split = [ask("quick", {"after": key}, unique=ONCE).outcome for key in range(COUNT)]
        print(f"\nkeys admitted by the new primary: {new.count('created')}, by both: {split.count('created')}\n")
        if (lost, again.count("created"), repeated, split.count("created")) != (COUNT,) * 4:
            raise Failed("The page says otherwise.")
    finally:
        worker.kill()


def _behind(primary: Node) -> int:
    return int(primary.ask("SELECT pg_current_wal_lsn() - replay_lsn FROM pg_stat_replication"))


def _completed(ids: Iterable[object]) -> int:
    connections.close_all()
    return Job.objects.filter(pk__in=ids, state="completed").count()
