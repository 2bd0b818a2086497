"""What a release is made of; `tests.packaged` tests the built files themselves."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from .packaged import RELATIVE, oldest

ROOT = Path(__file__).parent.parent
DESCRIBED = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = DESCRIBED["project"]
LISTED = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]


def test_each_dependency_has_an_oldest_version():
    named = {re.match(r"[\w-]+", line)[0] for line in LISTED} - {PROJECT["name"]}
    assert {line.partition("==")[0] for line in oldest(PROJECT)} == named


@pytest.mark.parametrize(
    ("listed", "constraint"),
    [
        ("a>=1.2", "a==1.2"),
        ("psycopg[binary]>=3.2.2", "psycopg==3.2.2"),
        ("a-b>=0.1; python_version < '3.14'", "a-b==0.1; python_version < '3.14'"),
    ],
)
def test_the_oldest_version_is_what_the_requirement_begins_with(listed, constraint):
    assert oldest({"dependencies": [listed], "optional-dependencies": {}}) == [constraint]


def test_no_dependency_has_an_upper_bound():
    assert [line for line in LISTED if "<" in line.partition(";")[0]] == []


def test_the_description_of_an_index_links_to_no_file_of_the_repository():
    text = (ROOT / "README.md").read_text()
    for rule in DESCRIBED["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert not RELATIVE.search(text)
    assert "(https://github.com/openjobspec/spec)" in text
    assert "The tutorial takes ten minutes" in text


def test_a_release_is_built_by_the_makefile():
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    assert "make dist" in [step.get("run") for step in steps]
