"""Break the package in one place at a time, and see that a test fails: ``python -m tests.mutants [NAME ...]``.

First the tests run on the unbroken package. Exits with 1 if a mutant survives its tests, or could not be applied.
PostgreSQL and MariaDB are found as `python -m tests` finds them; without MariaDB, its mutants are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from tests.__main__ import postgres

from .runner import AREAS, Copy, judge, needed, read


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants with this text in their names or areas")
    parser.add_argument("--list", action="store_true", help="say their names, and break nothing")
    parser.add_argument("--database", choices=["SQLite", "PostgreSQL", "MariaDB"], help="only those that run there")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in read((Path(__file__).parent / "mutants.toml").read_text())
        if not options.names or any(name in f"{mutant.area}: {mutant.name}" for name in options.names)
        if options.database in (None, mutant.database)
    ]
    if not mutants:
        parser.error("no mutant has such a name there")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.area}: {mutant.name} ({mutant.database}, {mutant.tier})")
        return 0
    counts: dict[str, Counter[str]] = {area: Counter() for area in AREAS}
    mariadb_url = os.environ.get("OJS_TEST_MARIADB_URL")
    if not mariadb_url:
        for mutant in [mutant for mutant in mutants if mutant.database == "MariaDB"]:
            mutants.remove(mutant)
            counts[mutant.area]["left out"] += 1
            print(f"LEFT OUT, as OJS_TEST_MARIADB_URL names no server: {mutant.area}: {mutant.name}")
    needs_postgres = any(mutant.database == "PostgreSQL" for mutant in mutants)
    with tempfile.TemporaryDirectory() as folder, postgres() if needs_postgres else nullcontext() as postgres_url:
        copy = Copy(Path(folder), {"PostgreSQL": postgres_url, "MariaDB": mariadb_url})
        for (database, tier), tests in needed(mutants).items():
            print(f"Running the tests on the unbroken package ({database}, {tier}) ...", flush=True)
            if (verdict := copy.pytest(tests, database, tier)).why != "SURVIVED":
                print(f"They must pass first: {verdict.why}")
                return 1
        for number, mutant in enumerate(mutants, 1):
            verdict = judge(copy, mutant)
            counts[mutant.area]["killed" if verdict.killed else "NOT KILLED"] += 1
            print(f"{number}/{len(mutants)} {mutant.area}: {mutant.name}: {verdict.why}", flush=True)
    columns = ("killed", "NOT KILLED", "left out")
    print("\n".join(["", "".join(f"{head:<12}" for head in ("area", *columns))]))
    for area, count in counts.items():
        print("".join(f"{cell!s:<12}" for cell in (area, *(count[column] for column in columns))))
    return int(any(count["NOT KILLED"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
