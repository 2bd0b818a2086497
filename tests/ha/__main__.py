"""High availability, tried out: ``python -m tests.ha SCENARIO``.

- standby, asynchronous: PostgreSQL and a standby.
- patroni, frozen: the same under Patroni with etcd.
- certification, galera: two MariaDB nodes with Galera.

Each starts servers of its own on loopback, strikes them under load, judges what is left, prints figures, and ends all
that it has started. Exit code 0: all that must hold has held; 1: something has not; 3: a program is not installed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from .servers import Failed, Missing, servers

SCENARIOS = {
    "standby": "postgres",
    "asynchronous": "postgres",
    "patroni": "postgres",
    "frozen": "postgres",
    "certification": "mysql",
    "galera": "mysql",
}
"""The scenarios, and the user that their servers run as."""
MISSING = 3


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in SCENARIOS:
        print(__doc__)
        return 2
    name = sys.argv[1]
    os.environ.pop("PGOPTIONS", None)  # what a suite asks for; here each commit waits
    try:
        with servers(SCENARIOS[name]) as place:
            getattr(import_module(".scenarios", __package__), name)(place)
            place.say("all that must hold has held; end the servers")
    except Missing as error:
        print(error)
        return MISSING
    except Failed as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
