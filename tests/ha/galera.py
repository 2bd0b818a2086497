"""Two MariaDB nodes in one Galera cluster, an arbitrator for the majority, and HAProxy in front of them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from tests.support.ports import HOST

from .servers import Failed, Missing, Servers, needed, reserved_ports

PROVIDER = "/usr/lib/galera/libgalera_smm.so"
USER = "root"


class Node:
    """One MariaDB server, by its folder and ports."""

    def __init__(self, place: Servers, name: str, port: int, group: int, transfer: int) -> None:
        self.place, self.name, self.port, self.group, self._transfer = place, name, port, group, transfer
        self.data = place.folder / name

    def initialise(self) -> None:
        where = [f"--datadir={self.data}", "--auth-root-authentication-method=normal"]
        self.place.run("mariadb-install-db", "--no-defaults", *where, "--skip-test-db")

    def start(self, *options: str, join: str) -> None:
        self.place.start(self.name, "mariadbd", *self._options(join), *options)
        self.place.wait(lambda: self.status("wsrep_local_state_comment") == "Synced", f"{self.name} is synced")

    def recover(self, join: str) -> None:
        """Start again after a crash, and ask the others only for what is missing."""
        said = self.place.run("mariadbd", *self._options(join), "--wsrep-recover")
        found = re.findall(r"Recovered position:? *(\S+:-?\d+)", said)
        self.place.say(f"{self.name} was at {found[-1].rpartition(':')[2]}")
        self.start(f"--wsrep-start-position={found[-1]}", join=join)

    def kill(self) -> None:
        """kill -9."""
        self.place.kill(self.name)

    def ask(self, sql: str, database: str = "") -> Any:
        """Run one statement; return its rows."""
        import MySQLdb  # not everybody has it who tries out PostgreSQL

        connection = MySQLdb.connect(host=HOST, port=self.port, user=USER, database=database, connect_timeout=3)
        try:
            connection.autocommit(True)
            cursor = connection.cursor()
            cursor.execute(sql)
            return cursor.fetchall()
        finally:
            connection.close()

    def status(self, name: str) -> str:
        return str(self.ask(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    def _options(self, join: str) -> list[str]:
        provider = (
            f"base_port={self.group};gmcast.listen_addr=tcp://{HOST}:{self.group};ist.recv_addr={HOST}:{self.group + 1}"
        )
        return [
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.place.folder}/{self.name}.sock",
            f"--pid-file={self.place.folder}/{self.name}.pid",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            "--innodb-buffer-pool-size=64M",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-provider-options={provider}",
            "--wsrep-cluster-name=jobs",
            f"--wsrep-cluster-address={join}",
            f"--wsrep-node-name={self.name}",
            f"--wsrep-node-address={HOST}:{self.group}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={HOST}:{self._transfer}",
        ]


class Cluster:
    """Two nodes, and the port on which HAProxy leads to one of them."""

    def __init__(self, place: Servers) -> None:
        if find_spec("MySQLdb") is None:
            raise Missing("not installed here: mysqlclient")
        needed("setpriv", "mariadbd", "mariadb-install-db", PROVIDER, "garbd", "haproxy", "rsync")
        self.place = place
        self.router, self._third, *ports = reserved_ports(place, 8)
        self.nodes = [Node(place, "node1", *ports[:3]), Node(place, "node2", *ports[3:])]
        self.address = "gcomm://" + ",".join(f"{HOST}:{node.group}" for node in self.nodes)

    def start(self) -> None:
        first, second = self.nodes
        for node in self.nodes:
            node.initialise()
        self.place.say("start the first node, which begins the cluster")
        first.start(join="gcomm://")
        first.ask("CREATE DATABASE jobs CHARACTER SET utf8mb4")
        self.place.say("start the second node, which copies the first")
        second.start(join=self.address)
        self.place.say("start the arbitrator and HAProxy")
        options = f"gmcast.listen_addr=tcp://{HOST}:{self._third}"
        self.place.start("garbd", "garbd", f"--address={self.address}", "--group=jobs", f"--options={options}")
        self.place.wait(lambda: first.status("wsrep_cluster_size") == "3", "the cluster has three members")
        self._start_router()

    def catch_up(self) -> None:
        """Return when each node has applied what the others have committed."""
        for node in self.nodes:
            self.place.wait(lambda node=node: node.status("wsrep_cluster_size") == "3", f"{node.name} is a member")
        self.place.wait(
            lambda: len({node.status("wsrep_last_committed") for node in self.nodes}) == 1, "the nodes are as far"
        )

    def agree(self) -> None:
        """Raise Failed unless every node is in the cluster, and has the same rows."""
        self.catch_up()
        tables = "django_ojs_unique_job, django_ojs_unique_suppressedenqueue"
        sums = [node.ask(f"CHECKSUM TABLE {tables}", "jobs") for node in self.nodes]
        if sums[0] != sums[1]:
            raise Failed(f"The nodes differ: {sums}")
        self.place.say("both nodes have the same rows")

    def _start_router(self) -> None:
        first, second = self.nodes
        settings = self.place.folder / "haproxy.cfg"
        settings.write_text(
            f"""defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen galera
    bind {HOST}:{self.router}
    default-server check inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions
    server node1 {HOST}:{first.port}
    server node2 {HOST}:{second.port} backup
"""
        )
        self.place.start("haproxy", "haproxy", "-db", "-f", str(settings))


def database(port: int) -> dict[str, Any]:
    """Return an entry for DATABASES."""
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "jobs",
        "USER": USER,
        "HOST": HOST,
        "PORT": str(port),
        "OPTIONS": {"connect_timeout": 3},
    }
