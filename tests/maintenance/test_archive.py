"""The archive of the documentation: a job is copied once, whole, in the transaction that prunes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import isolate_apps
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import Job
from tests.support.pages import ROOT, a_module

from .test_retention import DAY, finished

pytestmark = pytest.mark.django_db(transaction=True)
KEPT_A_YEAR = UniquePolicy(keys=["type"], states=["completed"], period="P1Y")


@pytest.fixture
def shop() -> Iterator[Any]:
    """The app that has copied the two modules, with its table."""
    before = set(sys.modules)
    with isolate_apps():
        for name in ("models", "archive"):
            path = ROOT / f"examples/archive/{name}.py"
            exec(compile(path.read_text(), path, "exec"), a_module("shop", name))
        shop: Any = sys.modules["shop"]
        with connection.schema_editor() as editor:
            editor.create_model(shop.models.ArchivedJob)
        yield shop
        with connection.schema_editor() as editor:
            editor.delete_model(shop.models.ArchivedJob)
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def archive(shop: Any) -> Callable[..., int]:
    return shop.archive.archive  # type: ignore[no-any-return]


def copies(shop: Any) -> dict[Any, Any]:
    return {row.pk: row.data["args"] for row in shop.models.ArchivedJob.objects.all()}


def test_what_is_past_its_retention_is_copied_and_pruned(shop: Any, archive: Callable[..., int]) -> None:
    old = [finished(kind, ago=200 * DAY, args={"kind": kind}) for kind in ("completed", "dead_letter")]
    kept = finished(ago=6 * DAY)
    assert (archive(), archive()) == (2, 0)
    assert copies(shop) == {job.pk: job.args for job in old}
    assert list(Job.objects.all()) == [kept]


def test_of_a_job_whose_window_is_open_the_whole_copy_stays(shop: Any, archive: Callable[..., int]) -> None:
    job = finished(ago=8 * DAY, args={"user": 7}, unique=KEPT_A_YEAR)
    assert (archive(), archive()) == (1, 0)
    job.refresh_from_db()
    assert (job.payload_pruned, job.args == {"user": 7}) == (True, False)
    Job._base_manager.update(window_ends_at=timezone.now() - timedelta(seconds=1))
    assert archive() == 1
    assert not Job.objects.exists()
    assert copies(shop) == {job.pk: {"user": 7}}


def test_a_pass_takes_a_batch_of_each_kind(shop: Any, archive: Callable[..., int]) -> None:
    for _ in range(3):
        finished(ago=8 * DAY)
    assert [archive(batch=2) for _ in range(3)] == [2, 1, 0]
    assert len(copies(shop)) == 3
