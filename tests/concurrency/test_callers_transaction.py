"""An enqueue inside the caller's transaction never breaks it, commits with it and rolls back with it (S0-075)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import Client, override_settings

from django_ojs_unique import DuplicateJob, job, presets
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
from tests.support.audit import ask, audit
from tests.support.processes import Child, Parent, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]


def names() -> set[str]:
    return set(Group.objects.values_list("name", flat=True))


def test_after_a_duplicate_the_transaction_is_usable_and_its_other_writes_commit():
    Job.objects.enqueue("t", unique={})
    with transaction.atomic():
        Group.objects.create(name="before")
        with pytest.raises(DuplicateJob):
            Job.objects.enqueue("t", unique={})
        Group.objects.create(name="after")
        assert Job.objects.count() == 1
    assert names() == {"before", "after"}
    assert len(audit()) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_duplicate_within_one_transaction_is_an_answer(strategy):
    with transaction.atomic():
        first = ask("t", unique={})
        second = ask("t", unique={"on_conflict": strategy})
        Group.objects.create(name="after")
    expected = {"reject": "duplicate", "ignore": "deduplicated"}.get(strategy, "replaced")
    assert (first.outcome, second.outcome) == ("created", expected)
    assert names() == {"after"}
    audit()


@pytest.mark.parametrize("unique", [None, {}], ids=["no policy", "policy"])
def test_a_taken_id_leaves_the_transaction_usable(unique):
    id = new_id()
    Job.objects.enqueue("other", id=id)
    with transaction.atomic():
        with pytest.raises(JobIdTaken):
            Job.objects.enqueue("t", unique=unique, id=id)
        Group.objects.create(name="after")
        assert Job.objects.enqueue("t", unique=unique).created
    assert names() == {"after"}
    assert len(audit()) == 2


def test_a_rollback_takes_the_job_with_it_and_frees_the_key():
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        Job.objects.enqueue("t", unique={})
        raise ZeroDivisionError
    assert Job.objects.count() == 0
    assert Job.objects.enqueue("t", unique={}).created


@pytest.mark.parametrize("strategy", ["replace", "replace_except_schedule"])
def test_a_rolled_back_replacement_leaves_the_old_job_and_its_unique_key(strategy):
    old = Job.objects.enqueue("t", unique={}).job
    with transaction.atomic():
        assert ask("t", unique={"on_conflict": strategy}).outcome == "replaced"
        transaction.set_rollback(True)
    (row,) = audit()
    assert (row.pk, row.state, row.holds_unique_key, row.replaced_by_id) == (old.pk, "available", True, None)


def test_a_rolled_back_savepoint_frees_the_key_for_the_rest_of_the_transaction():
    with transaction.atomic():
        Group.objects.create(name="outer")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            Job.objects.enqueue("t", unique={})
            raise ZeroDivisionError
        assert Job.objects.enqueue("t", unique={}).created
    assert names() == {"outer"}
    assert len(audit()) == 1


def test_a_released_savepoint_keeps_the_key_for_the_rest_of_the_transaction():
    with transaction.atomic():
        with transaction.atomic():
            first = ask("t", unique={})
        with transaction.atomic():
            assert ask("t", unique={"on_conflict": "ignore"}).id == first.id
        with pytest.raises(DuplicateJob), transaction.atomic():
            Job.objects.enqueue("t", unique={})
        Group.objects.create(name="after")
    assert names() == {"after"}
    assert len(audit()) == 1


def test_a_duplicate_that_leaves_an_inner_atomic_as_an_exception_undoes_only_the_inner_writes():
    Job.objects.enqueue("t", unique={})
    with transaction.atomic():
        Group.objects.create(name="outer")
        with contextlib.suppress(DuplicateJob), transaction.atomic():
            Group.objects.create(name="inner")
            Job.objects.enqueue("t", unique={})
    assert names() == {"outer"}


def test_a_duplicate_leaves_manual_transactions_usable():
    Job.objects.enqueue("t", unique={})
    transaction.set_autocommit(False)
    try:
        Group.objects.create(name="before")
        with pytest.raises(DuplicateJob):
            Job.objects.enqueue("t", unique={})
        assert ask("t", unique={"on_conflict": "replace"}).outcome == "replaced"
        Group.objects.create(name="after")
        transaction.commit()
        Job.objects.enqueue("u", unique={})
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert names() == {"before", "after"}
    assert {row.type for row in audit()} == {"t"}


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF="tests.concurrency.urls"):
        yield


@pytest.mark.parametrize(("strategy", "status"), [*zip(STRATEGIES, [409, 201, 201, 201], strict=True)])
def test_a_request_that_meets_a_duplicate_commits_what_else_it_wrote(atomic_requests, strategy, status):
    client = Client()
    assert client.get("/signup?name=one").status_code == 201
    assert client.get(f"/signup?name=two&strategy={strategy}").status_code == status
    assert names() == {"before one", "after one", "before two", "after two"}
    audit()


def test_a_request_that_fails_takes_its_job_with_it(atomic_requests):
    client = Client(raise_request_exception=False)
    assert client.get("/signup?name=one&fail").status_code == 500
    assert (names(), Job.objects.count()) == (set(), 0)
    assert client.get("/signup?name=two").status_code == 201
    assert len(audit()) == 1


def requester(parent: Parent, strategy: str) -> int:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    with override_settings(ROOT_URLCONF="tests.concurrency.urls"):
        parent.tell()
        return Client().get(f"/signup?name={parent.hear()}&strategy={strategy}").status_code


@pytest.mark.slow
def test_requests_that_wait_for_a_winner_commit_what_else_they_wrote(start):
    def first(parent: Parent) -> None:
        with transaction.atomic():
            ask("welcome", unique={})
            parent.tell()
            parent.hear()

    winner: Child = start(first)
    winner.hear()
    requests = [start(requester, strategy) for strategy in STRATEGIES]
    for number, request in enumerate(requests):
        request.hear()
        request.tell(str(number))
    wait_until_blocked(len(requests))
    winner.tell()
    winner.result()
    statuses = [request.result() for request in requests]
    assert set(statuses) <= {201, 409}
    assert statuses[1:] == [201] * 3
    assert names() == {f"{place} {number}" for place in ("before", "after") for number in range(4)}
    audit()


def in_own_order(parent: Parent, keys: list[str]) -> None:
    with transaction.atomic():
        for key in keys:
            ask(key, unique={"on_conflict": "ignore"})
            parent.tell()
            parent.hear()


@pytest.mark.slow
def test_two_transactions_that_share_keys_in_one_order_both_commit(start):
    first: Child = start(in_own_order, ["a", "b"])
    first.hear()
    second: Child = start(in_own_order, ["a", "b"])
    wait_until_blocked(1)
    first.tell()
    first.hear()
    first.tell()
    first.result()
    for _ in range(2):
        second.hear()
        second.tell()
    second.result()
    assert sorted(row.type for row in audit()) == ["a", "b"]


ONE_WAITS = presets.resque_uniqueue()
HINTS = [("enqueue", presets.newest_waits()), ("enqueue_on_commit", ONE_WAITS)]


def editor(parent: Parent, enqueue: str, unique: Any) -> None:
    """Change a text and ask for a run, which is committed when the parent says so."""
    with transaction.atomic():
        Group.objects.create(name="new text")
        getattr(Job.objects, enqueue)("index", unique=unique)
        parent.tell()
        parent.hear()


def runs_around_the_commit(start: Any, handlers: Any, enqueue: str, unique: Any) -> list[set[str]]:
    """Return what each run sees if a worker works before and after the commit of an editor that met a waiting job."""
    runs: list[set[str]] = []

    @job("index")
    def index() -> None:
        runs.append(names())

    Job.objects.enqueue("index", unique=unique)
    child: Child = start(editor, enqueue, unique)
    child.hear()
    if connection.vendor != "sqlite":  # which has one writer, so that no worker claims before the commit
        Worker().run(drain=True)
    child.tell()
    child.result()
    Worker().run(drain=True)
    return runs


@pytest.mark.slow
def test_the_job_that_an_ignored_enqueue_met_may_run_before_the_commit(start, handlers):
    runs = runs_around_the_commit(start, handlers, "enqueue", ONE_WAITS)
    assert runs == ([{"new text"}] if connection.vendor == "sqlite" else [set()])


@pytest.mark.slow
@pytest.mark.parametrize(("enqueue", "unique"), HINTS, ids=["replace", "on commit"])
def test_the_last_run_sees_what_was_committed_with_its_enqueue(start, handlers, enqueue, unique):
    assert runs_around_the_commit(start, handlers, enqueue, unique)[-1] == {"new text"}
