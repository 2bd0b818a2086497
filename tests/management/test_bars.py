"""Progress bars, with and without tqdm."""

import sys

import pytest
from django.core.management import call_command

from django_ojs_unique.progress import NoBar, progress


@pytest.fixture
def no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)


def test_a_bar_is_that_of_tqdm():
    with progress(0, total=3) as bar:
        assert type(bar).__module__.startswith("tqdm")


def test_without_tqdm_there_is_no_bar(no_tqdm):
    with progress(1, total=3, desc="jobs") as bar:
        bar.update(2)
    assert isinstance(bar, NoBar)
    assert (bar.total, bar.disable) == (3, True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "command", [["jobs", "verify", "--fix"], ["jobs", "rekey"], ["prunejobs"], ["runworker", "--drain"]], ids=" ".join
)
def test_commands_work_without_tqdm(no_tqdm, command):
    call_command(*command)
