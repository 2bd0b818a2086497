"""Play random sequences of calls: ``python -m tests.company --sequences 10000 --seed today``.

On the database that ``OJS_TEST_DATABASE_URL`` names, or on SQLite.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import date
from pathlib import Path

import pytest


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.company", description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seed", default="today", help="any text; 'today' is the date")
    options = parser.parse_args()
    seed = f"{date.today()}" if options.seed == "today" else options.seed
    os.environ |= {"OJS_COMPANY_SEQUENCES": str(options.sequences), "OJS_TORTURE_SEED": seed}
    return pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).parent)])


if __name__ == "__main__":
    sys.exit(main())
