"""The inbox: what SQL inserts is decided once, in its order, as an enqueue would be; what is invalid stays."""

import json
import logging
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import DataError, OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.enqueue import bulk
from django_ojs_unique.exceptions import Contended
from django_ojs_unique.handlers.carried import Context, obey_setting
from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import InboxRequest, Job, SuppressedEnqueue
from django_ojs_unique.signals import job_enqueued
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker import Worker
from tests.support.processes import Child

pytestmark = pytest.mark.django_db(transaction=True)

SERVER = pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time")


def ask(type="t", args=None, **options):
    """Insert a request in plain SQL; its columns that are not named have the database's defaults."""
    given = {"type": type, **({"args": args} if args is not None else {}), **({"options": options} if options else {})}
    insert(**{name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()})


def insert(**columns):
    names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO django_ojs_unique_inbox ({names}) VALUES ({places})", [*columns.values()])


def decide(**how):
    return inbox.decide(Job.objects.all(), **how)


def jobs(**which):
    return [job.args for job in Job.objects.filter(**which).order_by("pk")]


def errors():
    return [request.error for request in InboxRequest.objects.order_by("pk")]


def test_a_request_with_nothing_but_a_type_is_enqueued_and_gone():
    before = timezone.now() - timedelta(minutes=1)
    insert(type="t")
    asked = InboxRequest.objects.get()
    assert (asked.action, asked.args, asked.options, asked.refused_at) == ("enqueue", [], {}, None)
    assert before < asked.requested_at < timezone.now() + timedelta(minutes=1)
    assert decide() == inbox.Decided(1, more=True)
    stored = Job.objects.get()
    assert (stored.type, stored.args, stored.state, stored.queue) == ("t", [], "available", "default")
    assert not InboxRequest.objects.exists()
    assert decide() == inbox.Decided()


def test_the_options_are_those_of_the_http_binding():
    ask("t", {"a": 1}, queue="mail", priority=7, delay="PT1H", tags=["x"], metadata={"m": 2}, timeout_ms=5000)
    decide()
    stored = Job.objects.get()
    assert (stored.queue, stored.priority, stored.tags, stored.meta) == ("mail", 7, ["x"], {"m": 2})
    assert (stored.args, stored.state, stored.timeout_ms) == ({"a": 1}, "scheduled", 5000)


TOGETHER_OR_ALONE = pytest.mark.parametrize("most", [1000, 1])
"""A batch is enqueued by other code than a lone request."""


@TOGETHER_OR_ALONE
def test_each_outcome_is_that_of_an_enqueue(most):
    for strategy in ("ignore", "reject", "replace"):
        for number in (1, 2):
            ask(strategy, [number], unique={"keys": ["type"], "on_conflict": strategy})
    assert sum(decide(most=most).count for _ in range(6 if most == 1 else 1)) == 6
    assert jobs(type="ignore") == jobs(type="reject") == [[1]]
    assert [(each.args, each.state) for each in Job.objects.filter(type="replace").order_by("pk")] == [
        ([1], "cancelled"),
        ([2], "available"),
    ]
    met = dict(SuppressedEnqueue.objects.values_list("type", "outcome"))
    assert met == {"ignore": "deduplicated", "reject": "rejected", "replace": "replaced"}
    assert not InboxRequest.objects.exists()


@TOGETHER_OR_ALONE
def test_args_that_a_key_cannot_rewrite_are_refused_by_the_name_that_the_client_wrote(most, settings):
    settings.OJS_UNIQUE = {"REPLACE_MIXED_ARGS": False}
    for args in ([1], {"a": 2}, [3]):
        ask("t", args, key="k")
    assert sum(decide(most=most).count for _ in range(3 if most == 1 else 1)) == 3
    assert jobs() == [[1, 3]]
    (error,) = errors()
    assert (error["code"], error["field"]) == ("invalid_request", "args")


def test_enqueues_and_removals_of_a_key_are_decided_in_their_order():
    ask("t", [1], key="k")
    ask("t", [2], key="k")
    ask("other", [9], key="k")
    insert(action="remove", type="t", options='{"key": "k"}')
    ask("t", [3], key="k")
    insert(action="remove", options='{"key": "none"}')
    decide()
    assert jobs(type="t") == [[3]]
    assert jobs(type="other") == [[9]]
    ask("t", [4], key="k")
    decide()
    assert jobs(type="t") == [[3, 4]]
    assert not InboxRequest.objects.exists()


def test_what_is_rolled_back_is_never_decided_and_what_a_savepoint_keeps_is():
    with transaction.atomic():
        ask("kept")
        with transaction.atomic():
            ask("undone")
            transaction.set_rollback(True)
    decide()
    assert [each.type for each in Job.objects.all()] == ["kept"]


def test_a_decision_and_the_removal_of_its_request_are_one():
    ask()
    with transaction.atomic():
        assert decide().count == 1
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert InboxRequest.objects.count() == 1


@pytest.mark.parametrize(
    ("columns", "field", "says"),
    [
        ({"args": "[1]"}, "type", "is missing"),
        ({"type": "No Type"}, "type", "No Type"),
        ({"type": "t", "args": "null"}, "args", "is missing"),
        ({"type": "t", "options": "[]"}, "options", "must be an object"),
        ({"type": "t", "options": '{"prority": 1}'}, "options.prority", "priority"),
        ({"type": "t", "options": '{"priority": 1000}'}, "options.priority", "-100"),
        ({"type": "t", "options": '{"key": ""}'}, "options.key", "not empty"),
        ({"type": "t", "options": '{"unique": {"on_conflict": "?"}}'}, "options.unique.on_conflict", "?"),
        ({"type": "t", "options": '{"rate_limit": {"max_per_second": 1}}'}, "options.rate_limit", "for HTTP only"),
        ({"type": "t", "action": "enque"}, "action", "enqueue"),
        ({"action": "remove"}, "options.key", "is missing"),
        ({"action": "remove", "options": '{"key": 1}'}, "options.key", "must be a string"),
        ({"action": "remove", "options": '{"key": "k", "scope": "type"}'}, "options.scope", "key_scope"),
        ({"action": "remove", "options": '{"key": "k", "key_scope": "all"}'}, "options.key_scope", "global"),
        ({"action": "remove", "options": "7"}, "options", "must be an object"),
    ],
)
def test_an_invalid_request_stays_with_its_error_is_logged_once_and_blocks_nobody(columns, field, says, caplog):
    insert(**columns)
    ask("behind")
    with caplog.at_level(logging.WARNING):
        decide()
        decide()
    assert [each.type for each in Job.objects.all()] == ["behind"]
    refused = InboxRequest.objects.get()
    assert refused.refused_at is not None
    assert refused.error["field"] == field
    assert says in refused.error["message"]
    assert [str(refused.pk) in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.skipif(connection.vendor == "postgresql", reason="jsonb refuses it at the INSERT")
@pytest.mark.parametrize(("column", "field"), [("args", "args"), ("options", "options")])
def test_text_that_is_no_json_is_refused(column, field):
    insert(type="t", **{column: "{nonsense"})
    decide()
    assert errors()[0]["field"] == field


def test_a_removal_that_several_jobs_answer_to_is_refused():
    for type in ("a", "b"):
        ask(type, key="k")
    insert(action="remove", options='{"key": "k"}')
    decide()
    assert Job.objects.count() == 2
    assert errors()[0]["field"] == "options.key"


def test_a_refused_request_is_decided_once_more_if_it_is_retried():
    ask("t", delay="soon")
    decide()
    assert InboxRequest.objects.filter(options={}).retry() == 0
    InboxRequest.objects.update(options={})
    assert InboxRequest.objects.retry() == 1
    decide()
    assert Job.objects.count() == 1


def test_the_limits_of_args_and_their_redaction_hold(settings):
    settings.OJS_UNIQUE = {"MAX_ARGS_BYTES": 100, "REDACT": ["secret"]}
    ask("large", ["x" * 101])
    ask("bad", {"secret": "hidden"}, unique={"keys": ["args"], "args_keys": ["none"]})
    decide()
    assert not Job.objects.exists()
    large, bad = errors()
    assert (large["code"], large["field"]) == ("payload_too_large", "args")
    assert "hidden" not in json.dumps(bad)


def test_a_large_request_is_read_and_decided_alone(monkeypatch):
    monkeypatch.setattr(inbox, "LARGE", 1_000)
    for number in range(4):
        ask("t", [number, "x" * 1000 * (number == 2)])
    ask("t", [4], metadata={"x": "x" * 1000})
    assert [decide().count for _ in range(4)] == [2, 1, 1, 1]
    assert [number for number, _ in jobs()[:4]] == [0, 1, 2, 3]
    assert decide() == inbox.Decided()


def test_requests_far_apart_are_decided_in_their_order():
    for key in (-5000, 1, 2, 4000, 9000):
        insert(id=key, type="t", args=json.dumps([key]))
    assert [decide().count for _ in range(4)] == [1, 2, 1, 1]
    assert jobs() == [[-5000], [1], [2], [4000], [9000]]


@SERVER
def test_requests_behind_a_thousand_that_others_decide_are_decided():
    insert(id=1, type="held")
    insert(id=1500, type="t")
    with held("held"):
        assert decide() == inbox.Decided(1, more=True)
        assert [each.type for each in Job.objects.all()] == ["t"]
        assert decide() == inbox.Decided()


def test_a_request_that_fails_by_itself_is_refused_and_the_others_go_on(monkeypatch):
    def enqueue(jobs, asked, really=inbox._enqueue):
        really(jobs, asked)
        if any(one.wants.new_job.values["type"] == "poison" for one in asked):
            raise DataError("hidden")

    monkeypatch.setattr(inbox, "_enqueue", enqueue)
    for type in ("a", "poison", "b"):
        ask(type)
    assert decide() == inbox.Decided(3, more=True)
    assert sorted(each.type for each in Job.objects.all()) == ["a", "b"]
    (error,) = errors()
    assert error["code"] == "internal_error"
    assert "DataError" in error["message"]
    assert "hidden" not in error["message"]


def test_a_request_that_loses_against_others_is_left_and_those_behind_it_go_on(monkeypatch):
    def enqueue(jobs, asked, really=inbox._enqueue):
        really(jobs, asked)
        if any(one.wants.new_job.values["type"] == "contended" for one in asked):
            raise Contended

    monkeypatch.setattr(inbox, "_enqueue", enqueue)
    for type in ("contended", "behind"):
        ask(type)
    assert decide() == inbox.Decided(1, more=True)
    assert errors() == [None]
    assert Job.objects.get().type == "behind"


def test_a_lone_request_that_loses_against_others_is_left(monkeypatch):
    def decide_at_once(jobs, entries, *, refuse):
        raise Contended

    monkeypatch.setattr(bulk, "decide_at_once", decide_at_once)
    ask()
    assert decide() == inbox.Decided(0, more=True)
    assert errors() == [None]


def test_an_outage_is_no_requests_fault(monkeypatch):
    def enqueue(jobs, asked):
        raise OperationalError("the server is gone")

    monkeypatch.setattr(inbox, "_enqueue", enqueue)
    ask()
    with pytest.raises(OperationalError):
        decide()
    assert errors() == [None]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a failed statement breaks no transaction")
def test_a_receiver_that_breaks_the_transaction_blocks_nobody():
    def receiver(sender, job, **_):
        if job.type == "poison":
            Job.objects.raw("SELECT 1 / 0 AS id")[0]

    for type in ("a", "poison", "b"):
        ask(type)
    job_enqueued.connect(receiver)
    try:
        decide()
    finally:
        job_enqueued.disconnect(receiver)
    assert sorted(each.type for each in Job.objects.all()) == ["a", "b"]


class Place(Context):
    name = "place"
    unique = True

    def capture(self):
        return {"at": "here"}


def test_a_request_carries_nothing_of_the_place_where_it_is_decided(settings):
    settings.OJS_UNIQUE = {"CONTEXT": [Place]}
    obey_setting()
    ask("t", [1], key="k")
    decide()
    assert Job.objects.get().meta == {}
    here = Job.objects.enqueue("t", [2], key="k").job
    insert(action="remove", options='{"key": "k"}')
    decide()
    assert Job.objects.get().pk == here.pk
    obey_setting()


@contextmanager
def held(*types):
    """Let another decider have the first requests of these types, until the block ends."""

    def hold(parent):
        with transaction.atomic():
            for type in types:
                first = InboxRequest.objects.waiting().filter(type=type).values("pk")[:1].get()
                InboxRequest.objects.select_for_update().get(pk=first["pk"])
            parent.tell()
            parent.hear()

    child = Child(hold)
    child.hear()
    try:
        yield
    finally:
        child.tell()
        child.result()


@SERVER
def test_a_request_does_not_overtake_an_earlier_one_of_its_key_or_policy_that_somebody_else_has():
    once = {"unique": {"keys": ["type"], "on_conflict": "replace"}}
    ask("keyed", [1], key="Å")
    ask("once", [1], **once)
    ask("free", [1])
    ask("keyed", [2], key="A\u030a")  # the same in NFC
    ask("other", [2], key="Å", key_scope="global")
    ask("keyed", [2], key="å")
    insert(action="remove", type="keyed", options=json.dumps({"key": "Å"}))
    ask("once", [2], **once)
    ask("once", [3])  # without uniqueness there is no order
    ask("free", [2])
    with held("keyed", "once", "free"):
        assert decide() == inbox.Decided(3, more=True)
        assert decide() == inbox.Decided(0, more=True)
        assert jobs(type="free") == [[2]]
        assert [(each.key, each.args) for each in Job.objects.filter(type="keyed")] == [("å", [2])]
        assert jobs(type="once") == [[3]]
    decide()
    assert not InboxRequest.objects.waiting().exists()
    assert jobs(type="once", state="cancelled") == [[1]]
    assert sorted(jobs(type="once", state="available")) == [[2], [3]]
    assert [each.key for each in Job.objects.filter(type="keyed")] == ["å"]


@SERVER
def test_the_policy_of_a_handler_keeps_the_order_too(handlers):
    job("once", unique={"keys": ["type"]})(lambda *args: None)
    ask("once", [1])
    ask("once", [2])
    with held("once"):
        assert decide() == inbox.Decided(0, more=True)
    decide()
    assert jobs() == [[1]]


@SERVER
def test_a_request_before_the_held_one_is_decided():
    ask("t", [1], key="k")
    ask("middle", [2], key="k")
    ask("t", [3], key="k")
    with held("middle"):
        assert decide() == inbox.Decided(1, more=True)
    decide()
    assert jobs(type="t") == [[1, 3]]


@SERVER
def test_a_request_that_waits_for_a_lock_is_left_and_those_behind_it_go_on():
    locked = Job.objects.enqueue("t", [1], key="k").job

    def hold(parent):
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=locked.pk)
            parent.tell()
            parent.hear()

    ask("t", [2], key="k")
    ask("t", [3], key="k")
    ask("behind")
    child = Child(hold)
    child.hear()
    with connection.cursor() as cursor:
        cursor.execute(
            "SET lock_timeout = '50ms'" if connection.vendor == "postgresql" else "SET innodb_lock_wait_timeout = 1"
        )
    try:
        assert decide() == inbox.Decided(1, more=True)
    finally:
        connection.close()
    assert Job.objects.filter(type="behind").exists()
    child.tell()
    child.result()
    decide()
    assert jobs(type="t") == [[1, 2, 3]]


def test_a_drain_empties_the_inbox_also_of_what_its_jobs_ask_for(handlers):
    @job("first")
    def first():
        ask("second")

    @job("second")
    def second():
        pass

    ask("first")
    ask("first")
    assert Worker().run(drain=True).completed == 4
    assert not InboxRequest.objects.exists()


def test_run_jobs_decides_requests(handlers):
    job("t")(lambda: None)
    ask("t")
    assert len(run_jobs()) == 1
