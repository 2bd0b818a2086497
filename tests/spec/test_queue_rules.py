"""S2-01..S2-20: resque-uniqueue as a rule for queues, `OJS_UNIQUE["UNIQUE_QUEUES"]`, and as a policy of one job."""

import os
import random
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from multiprocessing.connection import wait

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import UniquePolicy, job, lifecycle
from django_ojs_unique.db.transactions import is_transient
from django_ojs_unique.integrity import verify
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import WAITING
from django_ojs_unique.unique.presets import resque_uniqueue
from django_ojs_unique.worker import Worker
from tests.support.audit import audit
from tests.support.jobs import claim, fresh, put, row
from tests.support.processes import PATIENCE, wait_until_alone

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


def push(queue="emails", args=None, type="email.send", **options):
    return Job.objects.enqueue(type, {"user": 1} if args is None else args, queue=queue, **options)


def length(queue="emails"):
    return Job.objects.filter(queue=queue, state="available").count()


@pytest.fixture
def rule(settings):
    def switch(value):
        settings.OJS_UNIQUE = {"UNIQUE_QUEUES": value}

    return switch


@pytest.fixture
def on(rule):
    """S2: every queue is unique."""
    rule(True)


@pytest.mark.parametrize("value", [pytest.param(v, id=f"S2-01-{v}") for v in ("unset", False)])
def test_it_is_off_by_default_and_changes_nothing_then(value, rule):
    if value is False:
        rule(value)
    first, second = push().job, push().job
    assert length() == 2
    assert (first.fingerprint, first.unique, second.unique_states) == (None, None, frozenset())


@pytest.mark.parametrize("queue", [pytest.param(q, id=f"S2-02-{q}") for q in ("emails", "orders", "default")])
def test_without_a_list_every_queue_is_unique(queue, on):
    push(queue)
    assert not push(queue).created
    assert length(queue) == 1


@pytest.mark.parametrize(
    "listed", [pytest.param(t(["emails", "orders"]), id=f"S2-03-{t.__name__}") for t in (list, tuple, set)]
)
def test_with_a_list_only_those_queues_are(listed, rule):
    rule(listed)
    lengths = {}
    for queue in ("emails", "orders", "reports"):
        push(queue), push(queue)
        lengths[queue] = length(queue)
    assert lengths == {"emails": 1, "orders": 1, "reports": 2}


@pytest.mark.parametrize("queues", [pytest.param(("emails", "orders"), id="S2-04")])
def test_the_same_payload_may_wait_on_two_queues(queues, on):
    assert all(push(queue).created for queue in queues)
    assert not any(push(queue).created for queue in queues)


@pytest.mark.parametrize("options", [
    pytest.param({}, id="S2-05"),
    pytest.param({"unique": None}, id="S2-05-no-escape"),
    pytest.param({"priority": 5, "tags": ["x"], "meta": {"trace": 2}, "max": 1}, id="S2-05-other-envelope"),
    pytest.param({"scheduled_at": 1}, id="S2-05-later"),
])  # fmt: skip
def test_an_identical_job_is_not_enqueued_while_one_waits(options, on):
    options.pop("max", None)
    if "scheduled_at" in options:
        options["scheduled_at"] = timezone.now() + HOUR
    first = push().job
    result = push(**options)
    assert (result.deduplicated, result.job.pk, length(), Job.objects.count()) == (True, first.pk, 1, 1)


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S2-05-{s}") for s in sorted(WAITING)])
def test_a_job_waits_in_each_of_these_states(state, on):
    waiting = put(push().job, state)
    assert push().job == waiting


@pytest.mark.parametrize(("args", "type"), [
    pytest.param({"user": 2}, "email.send", id="S2-06-value"),
    pytest.param({"user": "1"}, "email.send", id="S2-06-type-of-value"),
    pytest.param({"user": 1, "locale": "en"}, "email.send", id="S2-06-more"),
    pytest.param({}, "email.send", id="S2-06-none"),
    pytest.param([1], "email.send", id="S2-06-array"),
    pytest.param({"user": 1}, "email.other", id="S2-06-class"),
])  # fmt: skip
def test_a_payload_that_differs_in_anything_is_enqueued(args, type, on):
    push()
    assert push(args=args, type=type).created
    assert length() == 2


@pytest.mark.parametrize("id", ["S2-07"])
def test_the_caller_is_told_whether_it_was_queued(id, on):
    first, second = push(), push()
    assert (first.outcome, first.created, second.outcome, second.created) == ("created", True, "deduplicated", False)
    assert second.job == first.job


@pytest.mark.parametrize("id", ["S2-09"])
def test_jobs_run_first_in_first_out_and_a_refused_push_moves_none(id, on, handlers):
    ran = []
    job("email.send", takes_context=True)(lambda context, user: ran.append((user, context.enqueued_at)))
    pushed = [push(args={"user": user}).job for user in (3, 1, 2)]
    push(args={"user": 3}), push(args={"user": 2})
    Worker(concurrency=1).run(drain=True)
    assert ran == [(one.args["user"], one.enqueued_at) for one in pushed]


@pytest.mark.parametrize("id", ["S2-10"])
def test_a_job_that_runs_knows_when_it_was_pushed_and_when_it_started(id, on, handlers):
    seen = []
    job("email.send", takes_context=True)(lambda context, user: seen.append((context.enqueued_at, context.started_at)))
    before = timezone.now()
    pushed = push().job
    after = timezone.now()
    push()
    Worker().run(drain=True)
    ((enqueued_at, started_at),) = seen
    assert enqueued_at == fresh(pushed).created_at
    assert before <= enqueued_at <= after <= started_at
    assert started_at == fresh(pushed).started_at


@pytest.mark.parametrize("id", ["S2-11"])
def test_an_identical_job_may_be_enqueued_while_the_first_runs(id, on):
    first = push().job
    claim(first)
    second = push()
    assert second.created
    assert not push().created
    assert (fresh(first).state, fresh(second.job).holds_unique_key) == ("active", True)


@pytest.mark.parametrize("id", ["S2-12"])
def test_a_worker_at_an_empty_queue_finds_nothing_and_raises_nothing(id, on, handlers):
    job("email.send")(lambda user: None)
    assert Worker(queues=["emails"]).run(drain=True).completed == 0


@pytest.mark.slow
@pytest.mark.parametrize("broken", [
    pytest.param({"fingerprint": "0" * 64}, id="S2-13-fingerprint"),
    pytest.param({"unique_states": frozenset(["available"])}, id="S2-13-unique-states"),
    pytest.param({"unique": None, "fingerprint": None, "unique_states": frozenset()}, id="S2-13-rule"),
])  # fmt: skip
def test_rows_fingerprints_and_unique_keys_that_disagree_are_found_and_fixed(broken, on, capsys):
    pushed = push().job
    row(pushed).update(**broken)
    with pytest.raises(CommandError, match="1 to fix"):
        call_command("jobs", "verify")
    assert str(pushed.pk) in capsys.readouterr().out
    call_command("jobs", "verify", "--fix")
    call_command("jobs", "verify")
    assert not push().created
    assert fresh(pushed).fingerprint == pushed.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("id", ["S2-14"])
def test_switched_on_over_a_queue_with_jobs_a_check_tells_and_verify_fixes(id, rule, capsys):
    first, second, other = push().job, push().job, push(args={"user": 2}).job
    rule(["emails"])
    (told,) = [m for m in run_checks(databases=["default"]) if m.id == "django_ojs_unique.W004"]
    assert "hold 3 waiting jobs" in told.msg
    with pytest.raises(CommandError):
        call_command("jobs", "verify")
    assert "hint: the oldest waits on, the newer ones are cancelled" in capsys.readouterr().out
    assert length() == 3
    call_command("jobs", "verify", "--fix")
    assert [fresh(one).state for one in (first, second, other)] == ["available", "cancelled", "available"]
    assert not push().created
    assert [m for m in run_checks(databases=["default"]) if m.id == "django_ojs_unique.W004"] == []


@pytest.mark.slow
@pytest.mark.parametrize("id", ["S2-15"])
def test_after_all_jobs_of_a_queue_are_deleted_the_next_push_works(id, on):
    push(), push("orders")
    Job.objects.filter(queue="emails").delete()
    assert not verify(Job.objects.using("default"))
    assert push().created
    assert not push().created
    assert not push("orders").created


@pytest.mark.parametrize("value", [
    pytest.param(value, id=f"S2-16-{name}")
    for name, value in [("string", "emails"), ("none", None), ("number", 1), ("name", ["E Mails"]), ("item", [1])]
])  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused_when_the_project_starts(value, rule):
    rule(value)
    (error,) = [m for m in run_checks() if m.id == "django_ojs_unique.E001"]
    assert "OJS_UNIQUE['UNIQUE_QUEUES']" in error.msg


@pytest.mark.parametrize("value", [pytest.param(v, id=f"S2-16-{v}") for v in (True, False, [], ["emails"], ("a", "b"))])
def test_a_rule_that_makes_sense_passes(value, rule):
    rule(value)
    assert [m for m in run_checks() if m.id == "django_ojs_unique.E001"] == []


@pytest.mark.parametrize(("one", "other"), [
    pytest.param({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}, id="S2-17-order"),
    pytest.param({"a": 1}, {"a": 1.0}, id="S2-17-number"),
    pytest.param({"a": "\u00e9"}, {"a": "e\u0301"}, id="S2-17-unicode"),
])  # fmt: skip
def test_a_payload_is_its_canonical_text(one, other, on):
    push(args=one)
    assert not push(args=other).created


@pytest.mark.slow
@pytest.mark.parametrize("id", ["S2-17"])
def test_a_payload_is_the_same_in_a_process_with_another_hash_seed(id):
    code = (
        "import django; django.setup()\n"
        "from django_ojs_unique.unique.fingerprint import canonical_text\n"
        "from django_ojs_unique.unique.presets import resque_uniqueue\n"
        "args = {'tags': list('abc'), **{key: 1 for key in {'x', 'y', 'z', 'w'}}}\n"
        "print(canonical_text(resque_uniqueue(), type='t', queue='q', args=args, meta={}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("switch", [pytest.param(v, id=f"S2-18-{v}") for v in (False, True)])
def test_the_rest_of_the_interface_is_the_same_with_the_rule_or_without(switch, rule, handlers):
    rule(switch)
    ran = []
    job("email.send")(lambda user: ran.append(user))
    jobs = [push("a-queue.with-dots", args={"user": user}).job for user in range(3)]
    assert length("a-queue.with-dots") == 3
    jobs[1].cancel()
    Worker(queues=["a-queue.with-dots"], concurrency=1).run(drain=True)
    assert ran == [0, 2]
    assert Job.objects.filter(queue="a-queue.with-dots").delete()[0] == 3


@pytest.mark.parametrize(("state", "holds"), [
    pytest.param("discarded", False, id="S2-19-discarded"),
    pytest.param("retryable", True, id="S2-19-retryable"),
    pytest.param("completed", False, id="S2-19-completed"),
    pytest.param("cancelled", False, id="S2-19-cancelled"),
])  # fmt: skip
def test_a_job_that_failed_holds_its_payload_only_if_it_waits_for_its_retry(state, holds, on):
    put(push().job, state)
    assert push().deduplicated is holds


@pytest.mark.parametrize("id", ["S2-20"])
def test_the_preset_gives_one_job_what_the_rule_gives_a_queue(id, rule):
    unique = resque_uniqueue()
    assert push(unique=unique).created
    assert push(unique=unique).deduplicated
    assert push(unique=unique, args={"user": 2}).created
    assert push("orders", unique=unique).created
    first = Job.objects.order_by("pk").first()
    rule(["emails"])
    assert push().job == first
    claim(first)
    assert push().created


@pytest.mark.parametrize("policy", [
    pytest.param({"keys": ["type", "args"], "on_conflict": "replace"}, id="S2-20-own-policy"),
])  # fmt: skip
def test_a_policy_or_a_key_of_the_job_goes_before_the_rule(policy, on, handlers):
    push(unique=policy)
    assert push(unique=policy).replaced
    assert push(key="k").created
    assert push(key="other").created
    job("declared", unique=UniquePolicy(states=["active"], on_conflict="ignore"))(lambda: None)
    assert push(type="declared", args={}).created
    assert push(type="declared", args={}).created


# Processes


@pytest.mark.torture
@pytest.mark.parametrize("id", ["S2-08"])
def test_whoever_dies_at_whatever_moment_the_queue_and_its_unique_keys_agree(id, on, start):
    """Producers are killed at random while workers take what waits; then every row is audited."""
    dice = random.Random(random.SystemRandom().randrange(10**9))
    producers = [start(produce, dice.random()) for _ in range(3)]
    workers = [start(work, dice.random()) for _ in range(2)]
    answered, taken = set(), set()
    for _ in range(6):
        for child in producers:
            for _ in range(dice.randint(1, 12)):
                answered.add(child.hear())
        number = dice.randrange(len(producers))
        producers[number].kill()
        answered |= said(producers[number])
        producers[number] = start(produce, dice.random())
        taken |= {first_of(workers).hear() for _ in range(3)}
    for child in [*producers, *workers]:
        child.kill()
    for child in producers:
        answered |= said(child)
    for child in workers:
        taken |= said(child)
    wait_until_alone()
    rows = {one.pk: one for one in audit()}
    assert answered <= rows.keys(), "a job was lost"
    waiting = Counter(one.args[0] for one in rows.values() if one.state == "available")
    assert [payload for payload, count in waiting.items() if count > 1] == []
    assert all(rows[pk].state in ("active", "completed") for pk in taken)
    assert all(one.holds_unique_key for one in rows.values() if one.state == "available")
    assert not verify(Job.objects.using("default"))


def produce(parent, seed):
    dice = random.Random(seed)
    while True:
        try:
            with transaction.atomic():
                # In sorted order, so that two callers never wait for each other.
                pushed = [push(args=[payload]).job.pk for payload in sorted(dice.sample(range(20), 2))]
        except OperationalError as error:
            if connection.vendor != "mysql" or not is_transient(error):
                raise
            continue  # InnoDB locks gaps between keys, so that even sorted transactions may deadlock
        for pk in pushed:
            parent.tell(pk)


def work(parent, seed):
    dice = random.Random(seed)
    while True:
        waiting = list(Job.objects.filter(state="available").order_by("pk")[:10])
        if not waiting:
            continue
        one = dice.choice(waiting)
        try:
            token = claim(one)
        except AssertionError:
            continue  # somebody else was faster
        if dice.random() < 0.7:
            lifecycle.complete(row(one), timezone.now(), token=token)
        parent.tell(one.pk)


def first_of(children):
    """Return a child that has something to say: one alone may starve when the others are as fast as they can be."""
    ready = wait([child.pipe for child in children], PATIENCE)
    return next((child for child in children if child.pipe in ready), children[0])


def said(child):
    """Return what a child that is dead had said before."""
    heard = set()
    try:
        while child.pipe.poll():
            kind, message = child.pipe.recv()
            if kind == "said":
                heard.add(message)
    except (EOFError, OSError):
        pass
    return heard
