"""Two PostgreSQL servers under Patroni, with etcd as the judge of who leads."""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.ports import HOST

from .postgres import BIN, PARAMETERS, USER, Node
from .servers import Missing, Servers, needed, reserved_ports, send, tree

TTL, LOOP, RETRY = 20, 5, 5
"""Seconds: how long a leader may be silent, how often Patroni looks, how long it tries to reach etcd or PostgreSQL."""
LEAST = (3, 0, 3)
"""With an older Patroni and etcd 3, a leader that was frozen takes back the lock of the one promoted meanwhile."""
OWN = Path(__file__).parents[2] / "build/patroni"
"""Where `make ha` puts a newer version than the system's, which has what both of them need."""
PATRONI = ("env", f"PYTHONPATH={OWN}", "/usr/bin/python3", "-m", "patroni")


class Member(Node):
    """A server that Patroni starts, promotes and demotes."""

    def __init__(self, place: Servers, name: str, port: int, rest: int, etcd: int) -> None:
        super().__init__(place, name, port)
        self._rest = rest
        self._patroni = 0
        self._settings = place.folder / f"{name}.json"  # JSON is YAML
        account = {"username": USER}
        dcs = {
            "ttl": TTL,
            "loop_wait": LOOP,
            "retry_timeout": RETRY,
            "synchronous_mode": True,
            "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": PARAMETERS},
        }
        settings = {
            "scope": "jobs",
            "name": name,
            "restapi": {"listen": f"{HOST}:{rest}", "connect_address": f"{HOST}:{rest}"},
            "etcd3": {"host": f"{HOST}:{etcd}"},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}]},
            "postgresql": {
                "listen": f"{HOST}:{port}",
                "connect_address": f"{HOST}:{port}",
                "data_dir": str(self.data),
                "bin_dir": str(BIN),
                "basebackup": [{"checkpoint": "fast"}],
                "pgpass": str(place.folder / f"{name}.pgpass"),
                "authentication": {"superuser": account, "replication": account},
                "parameters": {"unix_socket_directories": str(place.folder)},
                "pg_hba": [f"host all all {HOST}/32 trust", f"host replication all {HOST}/32 trust"],
            },
        }
        self._settings.write_text(json.dumps(settings))
        place.ending(self.kill)

    def start(self) -> None:
        self._patroni = self.place.start(self.name, *PATRONI, str(self._settings))

    def kill(self) -> None:
        """kill -9: Patroni first, which would start the server again."""
        with suppress(KeyError):
            super().kill()
        with suppress(FileNotFoundError):
            for pid in tree(self.postmaster):
                send(pid, signal.SIGKILL)

    def freeze(self) -> None:
        send(self._patroni, signal.SIGSTOP)
        super().freeze()

    def thaw(self) -> None:
        super().thaw()
        send(self._patroni, signal.SIGCONT)

    @property
    def leads(self) -> bool:
        return self._says("primary").get("role") in ("master", "primary")  # Patroni 3, Patroni 4

    @property
    def confirms(self) -> bool:
        """Whether the leader answers no commit before this member has it."""
        return self._says("synchronous").get("sync_standby") is True

    def _says(self, question: str) -> dict[str, Any]:
        with urlopen(f"http://{HOST}:{self._rest}/{question}", timeout=2) as answer:  # 503 is an error
            said: dict[str, Any] = json.load(answer)
        return said


def check(version: str) -> None:
    """Raise Missing if this is an older version than LEAST."""
    if tuple(map(int, re.findall(r"\d+", version))) < LEAST:
        least = ".".join(map(str, LEAST))
        raise Missing(f"Patroni is {version} here, and must be {least} or newer; `make ha` installs one, once")


def cluster(place: Servers) -> tuple[Member, Member]:
    """Start etcd and two members; return the leader and the synchronous standby."""
    needed("setpriv", "patroni", "etcd", f"{BIN}/initdb")
    version = place.run(*PATRONI, "--version").split()[-1]
    check(version)
    place.say(f"Patroni {version}")
    peer, client, *ports = reserved_ports(place, 6)
    place.say("start etcd")
    here = f"http://{HOST}"
    urls = [f"--listen-client-urls={here}:{client}", f"--advertise-client-urls={here}:{client}"]
    peers = [f"--listen-peer-urls={here}:{peer}", f"--initial-advertise-peer-urls={here}:{peer}"]
    of_one = [f"--initial-cluster=default={here}:{peer}", f"--data-dir={place.folder}/etcd"]
    place.start("etcd", "etcd", *urls, *peers, *of_one)
    place.wait(lambda: urlopen(f"{here}:{client}/health", timeout=2).status == 200, "etcd answers")
    first, second = Member(place, "node1", *ports[:2], client), Member(place, "node2", *ports[2:], client)
    place.say("start Patroni: the first member")
    first.start()
    place.wait(lambda: first.leads, "the first member leads")
    first.ask("CREATE DATABASE jobs")
    place.say("start Patroni: the second member")
    second.start()
    place.wait(lambda: second.confirms, "the second member is the synchronous standby")
    return first, second
