"""``jobs limits``, and what ``jobs show`` and ``jobs explain`` say about limits and pauses."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ojs_unique import Limit, UniquePolicy, job
from django_ojs_unique.models import Job, LimitOverride, Queue
from tests.support.limits import ONE, enqueue, take
from tests.support.secrets import SECRET, assert_hidden

pytestmark = pytest.mark.django_db(transaction=True)


def jobs(*arguments: str) -> str:
    out = io.StringIO()
    call_command("jobs", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def answer(*arguments: str) -> Any:
    return json.loads(jobs(*arguments, "--json"))


@pytest.fixture
def waiting() -> list[Any]:
    """Three jobs of one key, of which one runs, and one job of another key that runs."""
    found = [enqueue(n) for n in (1, 1, 1, 2)]
    take(), take()
    return found


def test_without_limits_it_says_how_to_declare_one():
    assert "Limit(key=['args.customer_id'], running=1)" in jobs("limits")
    assert answer("limits") == []


def test_the_limits_are_listed_with_what_runs_and_waits(waiting):
    heading, line = jobs("limits").splitlines()
    assert heading.split("  ")[0] == "limit"
    assert line.split() == ["args.n", "1", "at", "once", "code", "2", "2", "2", "1"]
    (told,) = answer("limits")
    assert told["numbers"] == told["in_code"] == [{"running": 1, "rate": None, "seconds": None}]
    counts = [told[name] for name in ("keys", "running", "waiting", "waiting_partitions", "is_cut")]
    assert (told["name"], counts) == ("args.n", [2, 2, 2, 1, False])


def test_the_partitions_of_a_limit_are_shown_with_the_first_that_waits(waiting):
    text = jobs("limits", "args.n")
    assert text.startswith("args.n: 1 at once\n")
    assert [line.split()[:2] for line in text.splitlines()[2:]] == [["args.n", "1"], ["args.n", "2"]]
    assert str(waiting[1]) in text
    first, second = answer("limits", "args.n")["keys_with_jobs"]
    assert (first["text"], first["running"], first["waiting"]) == ("args.n 1", 1, 2)
    assert (first["first_job_id"], second["first_job_id"]) == (str(waiting[1]), None)
    assert "--most 5" in jobs("limits", "args.n", "--most", "1")


def test_a_limit_without_jobs_says_so(handlers):
    job("t", limit=Limit(key=["args.n"], running=2))(lambda n: None)
    assert jobs("limits", "args.n") == "args.n: 2 at once\nNo job runs under it or waits for it now.\n"


def test_a_limit_that_nothing_knows_is_refused_with_the_near_name(waiting):
    with pytest.raises(CommandError, match=r"'args\.n'\?"):
        jobs("limits", "args.m")


@pytest.mark.slow
def test_an_operator_sets_the_numbers_and_takes_them_back(waiting):
    assert jobs("limits", "args.n", "--running", "3") == "args.n: 3 at once.\n"
    assert len(take()) == 2
    assert jobs("limits", "args.n", "--running", "3") == "args.n: 3 at once, as before.\n"
    assert "Set by an operator; the code says 1 at once." in jobs("limits", "args.n")
    told, *_ = jobs("limits", "args.n", "--rate", "5", "--json").splitlines()
    assert json.loads(told) == {"name": "args.n", "running": 3, "rate": 5, "changed": True}
    assert answer("limits", "args.n", "--running", "none")["running"] is None
    assert LimitOverride.objects.get().rate == 5
    assert jobs("limits", "args.n", "--reset") == "args.n: 1 at once.\n"
    assert not LimitOverride.objects.exists()


def test_a_change_that_has_no_effect_is_doubted(waiting):
    assert "--rate has no effect" in jobs("limits", "args.n", "--rate", "5")
    assert "Did you mean 'args.n'?" in jobs("limits", "args.nn", "--running", "5")
    assert LimitOverride.objects.count() == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--running", "3"], "jobs limits"),
        (["x", "--reset", "--rate", "3"], "^--reset"),
        (["x", "--rate", "3", "--watch"], "^--watch"),
        (["x", "--rate", "0"], "--rate: .*'0'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(arguments, message):
    with pytest.raises(CommandError, match=message):
        jobs("limits", *arguments)
    assert not LimitOverride.objects.exists()


def test_show_says_what_a_job_waits_for(waiting):
    first, second, *_ = waiting
    assert f"Waits for a slot of args.n 1: 1 of 1 in use. Held by {first}." in jobs("show", str(second))
    assert answer("show", str(second))["waits_for"][1] == f"Held by {first}."
    assert "Waits for" not in jobs("show", str(first))


def test_explain_says_whether_an_enqueue_would_wait(waiting, handlers):
    job("u", limit=ONE)(lambda n: None)
    assert "limit:          Would wait for a slot of args.n 1: 1 of 1 in use. 2 jobs wait before it." in jobs(
        "explain", "u", "--args", '{"n": 1}'
    )
    assert answer("explain", "u", "--args", '{"n": 3}')["waits_for"] == [
        "Would have a slot of args.n 3: 0 of 1 in use. No job waits before it."
    ]
    assert answer("explain", "plain")["waits_for"] == []


def test_explain_says_what_the_existing_job_waits_for():
    once = UniquePolicy(keys=["type"])
    holder, held = enqueue(1), Job.objects.enqueue("x", {"n": 1}, limit=ONE, unique=once).job.id
    take(), take()
    said = jobs("explain", "x", "--unique", json.dumps(once.to_dict()))
    assert f"job {held}: Waits for a slot of args.n 1: 1 of 1 in use. Held by {holder}." in said


def test_a_job_on_a_paused_queue_waits_for_the_queue(waiting, handlers):
    job("u", limit=ONE)(lambda n: None)
    plain, *limited = Job.objects.enqueue("plain").job.id, *waiting[1:3]
    Queue.objects.pause("default")
    paused = "Queue default is paused: no worker claims its jobs."
    for id in (plain, *limited):
        assert answer("show", str(id))["waits_for"] == [paused]
        assert paused in jobs("show", str(id))
    for label, *call in (("queue", "plain"), ("limit", "u", "--args", '{"n": 3}')):
        assert answer("explain", *call)["waits_for"] == [paused]
        assert f"{label}:          {paused}" in jobs("explain", *call)
    assert answer("explain", "plain", "--queue", "other")["waits_for"] == []
    Queue.objects.resume("default")
    assert answer("show", str(plain))["waits_for"] == []


@pytest.mark.slow
def test_redacted_values_are_not_printed(handlers):
    @job("bank.pay", redact=["iban"], limit=Limit(key=["args.iban"], running=1))
    def pay(iban):
        pass

    ids = [pay.enqueue(iban=SECRET).job.id for _ in range(2)]
    take(), take()
    args = json.dumps({"iban": SECRET})
    for call in (["limits", "args.iban"], ["show", str(ids[1])], ["list"], ["explain", "bank.pay", "--args", args]):
        assert_hidden(jobs(*call, "--json"))
        assert_hidden(jobs(*call))
