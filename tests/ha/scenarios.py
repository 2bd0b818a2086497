"""What is done to the databases, step by step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import galera as mariadb
from . import patroni as patronis
from . import postgres
from .servers import Servers


def standby(place: Servers) -> None:
    """A synchronous standby, promoted manually; the old primary comes back as its standby."""
    first, second = postgres.pair(place)
    first.confirm_by(second)
    set_up(place, postgres.database(first.port, second.port))
    from .load import load

    with load(place) as running:
        running.add()
        running.add()
        running.flows()
        running.struck("kill -9: the primary")
        first.kill()
        place.say("promote the standby")
        second.promote()
        running.flows()
        place.say("rewind the old primary and start it as the standby")
        first.rewind(second)
        first.start()
        second.confirm_by(first)
        running.flows()
        running.judge(running.end())


def asynchronous(place: Servers) -> None:
    """An asynchronous standby, and an old primary that nobody fences: what is lost."""
    first, second = postgres.pair(place)
    set_up(place, postgres.database(first.port, second.port))
    from .loss import lose

    lose(place, first, second)


def patroni(place: Servers) -> None:
    """The leader dies with its Patroni; it comes back and follows."""
    with patroni_cluster(place) as (first, second, running):
        running.struck("kill -9: the leader, with its Patroni")
        first.kill()
        place.wait(lambda: second.leads, "the second member leads")
        place.say("the second member leads")
        running.flows()
        place.say("start the first member again")
        first.start()
        place.wait(lambda: first.confirms, "the first member is the synchronous standby")
        place.say("it has rewound itself and is the synchronous standby")


def frozen(place: Servers) -> None:
    """The leader and its Patroni stand still, and go on when another one leads."""
    with patroni_cluster(place) as (first, second, running):
        running.struck("freeze the leader, with its Patroni")
        first.freeze()
        place.wait(lambda: second.leads, "the second member leads")
        place.say("the second member leads; new clients come, the old ones still wait for the frozen server")
        running.add()
        running.flows()
        place.say("thaw the old leader, which still believes that it leads")
        first.thaw()
        place.wait(lambda: first.confirms, "the old leader is the synchronous standby")
        place.say("it has stepped down and is the synchronous standby")


@contextmanager
def patroni_cluster(place: Servers) -> Iterator[tuple[patronis.Member, patronis.Member, Any]]:
    """Yield the leader, the synchronous standby and what runs on them; at the end judge it."""
    first, second = patronis.cluster(place)
    set_up(place, postgres.database(first.port, second.port))
    from .load import load  # which needs the settings

    with load(place) as running:
        running.add()
        running.add()
        running.flows()
        yield first, second, running
        running.flows()
        running.judge(running.end())


def certification(place: Servers) -> None:
    """Two nodes are asked for the same thing at once."""
    cluster = mariadb.Cluster(place)
    cluster.start()
    set_up(place, mariadb.database(cluster.nodes[0].port))
    from .certification import certify

    certify(cluster)


def galera(place: Servers) -> None:
    """Both nodes take writes; one is killed and comes back."""
    cluster = mariadb.Cluster(place)
    cluster.start()
    first, second = cluster.nodes
    set_up(place, mariadb.database(cluster.router))
    from .load import load

    with load(place) as running:
        running.add()
        running.add(str(second.port))
        running.flows()
        running.struck("kill -9: the first node")
        first.kill()
        place.wait(lambda: second.status("wsrep_cluster_size") == "2", "the others notice")
        place.say("the others have noticed")
        running.flows()
        place.say("start the first node again")
        first.recover(cluster.address)
        running.flows()
        running.judge(running.end())
        cluster.agree()


def set_up(place: Servers, database: dict[str, Any]) -> None:
    """Tell Django of the database, and make the tables."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.support.project.settings"
    os.environ["OJS_TEST_WORKER_DATABASE"] = json.dumps(database)
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from django_ojs_unique.db.capabilities import strength
    from django_ojs_unique.models import Job

    place.say("migrate")
    call_command("migrate", verbosity=0)
    place.say(f"the strength of uniqueness here: {strength(Job, 'default')}")
    connection.close()
