"""The ids that tests carry (S0-160) are those of `statements.md`, and each statement has a test."""

import re
from pathlib import Path

ID = re.compile(r"\bS\d-\d+\b")
HERE = Path(__file__).parent


def test_each_statement_has_a_test_and_each_id_a_statement():
    listed = re.findall(r"^\| (S\d-\d+) \|", (HERE / "statements.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    named = {id for file in HERE.parent.rglob("*.py") if file != Path(__file__) for id in ID.findall(file.read_text())}
    assert named == set(listed)
