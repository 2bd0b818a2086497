"""What is redacted: by name, at any depth, and in the beginning of JSON that was cut."""

import json
import traceback
from datetime import date, timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from django_ojs_unique import InvalidRequest, UniquePolicy, job
from django_ojs_unique.checks.setting_problems import problems
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.handlers import redaction
from django_ojs_unique.handlers.redaction import (
    MASK,
    holds_mask,
    redact_error,
    redacted,
    redacted_args,
    redacted_beginning,
    redacted_canonical,
)
from django_ojs_unique.maintenance.cron import tick
from django_ojs_unique.models import CronJob, Event, Job
from django_ojs_unique.tasks import task
from django_ojs_unique.tasks.running import type_of
from django_ojs_unique.testing import run_jobs
from tests.support.refusals import refused
from tests.support.secrets import ARGS, META, SECRET, assert_hidden


@pytest.fixture
def paying(handlers):
    """Declare a type that redacts ``iban``."""

    @job("bank.pay", redact=["iban"])
    def pay(iban, amount=0, *more, note=""):
        pass

    return pay


@pytest.mark.parametrize("name", ["iban", "IBAN", "Iban"])
def test_a_member_is_masked_at_any_depth_whatever_its_case(paying, name):
    value = {"amount": 5, "to": [{name: SECRET, "city": "Ulm"}], name: {"of": [SECRET]}}
    assert redacted("bank.pay", value) == {"amount": 5, "to": [{name: MASK, "city": "Ulm"}], name: MASK}
    assert value["to"][0][name] == SECRET


def test_names_for_all_types_and_for_one_add_up(paying, settings):
    settings.OJS_UNIQUE = {"REDACT": ["PIN"]}
    value = {"iban": SECRET, "pin": 1234}
    assert redacted("bank.pay", value) == {"iban": MASK, "pin": MASK}
    assert redacted("other", value) == {"iban": SECRET, "pin": MASK}


def test_what_is_nested_too_deeply_is_masked_as_a_whole(paying):
    deep = [SECRET]
    for _ in range(20_000):
        deep = [deep]
    assert redacted("bank.pay", {"x": deep}) == MASK
    assert redacted_args("bank.pay", [1, deep]) == [MASK, MASK]
    assert not holds_mask(deep)
    assert holds_mask([deep, {"x": [MASK]}])


@pytest.mark.parametrize("value", [{"iban": SECRET}, [SECRET], SECRET, None])
def test_without_names_a_value_is_not_even_copied(value):
    assert redacted("t", value) is value
    assert redacted_args("t", value) is value
    assert redacted_beginning("t", '{"iban": "D') == '{"iban": "D'
    assert redacted_canonical("t", "{") == "{"


def test_an_array_is_masked_where_the_handler_has_the_parameter(paying, handlers):
    assert redacted_args("bank.pay", [SECRET, 5, {"iban": SECRET}, "x"]) == [MASK, 5, {"iban": MASK}, "x"]
    assert redacted("bank.pay", [SECRET, 5]) == [SECRET, 5]  # a result has no parameters

    @job("bank.many", takes_context=True, redact=["ibans"])
    def many(context, city, /, *ibans):
        pass

    assert redacted_args("bank.many", ["Ulm", SECRET, SECRET]) == ["Ulm", MASK, MASK]


def test_a_name_in_another_form_of_unicode_is_the_same(settings):
    settings.OJS_UNIQUE = {"REDACT": ["Gehälter"]}
    assert redacted("t", {"gehälter": 5}) == {"gehälter": MASK}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ({"args": {"iban": SECRET, "n": 1}, "type": "bank.pay"}, {"args": {"iban": MASK, "n": 1}, "type": "bank.pay"}),
        ({"args": [SECRET, 1], "type": "bank.pay"}, {"args": [MASK, 1], "type": "bank.pay"}),
        ({"args": {"/to/iban": SECRET}, "meta": {"IBAN": 5}}, {"args": {"/to/iban": MASK}, "meta": {"IBAN": MASK}}),
        ({"args": {"/iban~1x": SECRET}}, {"args": {"/iban~1x": SECRET}}),
        ({"args": {"/x/iban/0": SECRET}}, {"args": {"/x/iban/0": MASK}}),
    ],
)
def test_the_canonical_text_is_masked(paying, text, shown):
    assert json.loads(redacted_canonical("bank.pay", json.dumps(text))) == shown


def test_a_canonical_text_that_cannot_be_read_is_masked_as_a_whole(paying):
    assert redacted_canonical("bank.pay", f'{{"iban": "{SECRET}') == MASK


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f'{{"n": 1, "iban": "{SECRET}", "x": tru', f'{{"n": 1, "iban": "{MASK}", "x": '),
        (f'{{"n": 1, "iban": "{SECRET[:9]}', '{"n": 1, "iban": '),
        ('{"n": 12', '{"n": '),
        ('{"body": "Dear', '{"body": "Dear'),
        ('{"body": "Dear \\', '{"body": "Dear \\'),
        ('{"body": "Dear", "na', '{"body": "Dear", "na'),
        (f'{{"to": {{"iban": "{SECRET}"}}, "x', f'{{"to": {{"iban": "{MASK}"}}, "x'),
        (f'{{"to": {{"iban": "{SECRET}", "x', '{"to": '),
        (f'{{"to": [{{"iban": "{SECRET[:5]}', '{"to": '),
        (f'{{"bad": "\\q", "iban": "{SECRET}", ', '{"bad": '),
        (f'["{SECRET}", 5, "a', f'["{MASK}", 5, "a'),
        (f'["{SECRET[:5]}', "["),
        (f'"{SECRET}', MASK),
        (SECRET, MASK),
        ("", MASK),
    ],
)
def test_the_beginning_of_json_hides_too_much_rather_than_too_little(paying, text, shown):
    assert redacted_beginning("bank.pay", text) == shown


@pytest.mark.parametrize("args", [{"x": "é" * 3, "to": {"iban": SECRET, "l": [1, [2]]}, "IBAN": [SECRET]}, [[SECRET]]])
def test_no_cut_shows_a_part_of_the_secret(paying, args):
    text = json.dumps(args)
    for end in range(len(text)):
        assert SECRET[:4] not in redacted_beginning("bank.pay", text[:end])


def refusal(field, value, hint=""):
    return InvalidRequest.at(field, "is wrong", value=value, hint=hint)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("args.iban", SECRET),
        ("args.IBAN", SECRET),
        ("args.to[3].iban.x", SECRET),
        ("args[0]", SECRET),
        ("args[0].x", SECRET),
        ("args", SECRET),
        ("args", [SECRET]),
        ("args.to", {SECRET}),
        ("args.to", {"iban": SECRET}),
        ("meta.iban", SECRET),
        ("result.iban", SECRET),
        ("extra.iban", SECRET),
        ("metadata", [SECRET]),
        (f"args.{'x' * 200}.iban", SECRET),
    ],
)
def test_an_error_about_a_redacted_member_does_not_quote_it(paying, field, value):
    error = refusal(field, value, hint=f"Write [{value!r}].")
    redact_error(error, "bank.pay")
    assert SECRET[:4] not in f"{error} {error.message} {error.wire_message} {error.details} {error.got} {error.args}"
    assert MASK in error.message
    assert error.message.startswith(error.details["field"])


@pytest.mark.parametrize(("field", "value"), [("args.amount", 5), ("args.to", "Ulm"), ("queue", ["x"]), ("args[1]", 5)])
def test_an_error_about_another_member_says_what_it_got(paying, field, value):
    error = refusal(field, value)
    redact_error(error, "bank.pay")
    assert error.message == refusal(field, value).message
    assert error.wire_message == refusal(field, value).wire_message


@pytest.mark.parametrize(
    ("problem", "value", "message"),
    [
        (f"is no date: {SECRET * 9!r}", SECRET * 9, "args.iban: is no date (got [redacted]). Fix it."),
        (f"is no date: {SECRET}", ..., "args.iban: is no date. Fix it."),
        ("is no date", True, "args.iban: is no date (got [redacted]). Fix it."),
        ("is no date", SECRET, "args.iban: is no date (got [redacted]). Fix it."),
        ("is no date", ..., "args.iban: is no date. Fix it."),
    ],
)
def test_an_error_does_not_quote_the_value_in_its_reason(paying, problem, value, message):
    error = InvalidRequest.at("args.iban", problem, value=value, hint="Fix it.")
    redact_error(error, "bank.pay")
    assert error.message == str(error) == message
    assert SECRET[:4] not in error.wire_message


def test_an_error_with_a_message_of_its_own_does_not_quote_the_value(paying):
    error = InvalidRequest(f"args.iban: {SECRET} is unknown.", details={"field": "args.iban", "value": repr(SECRET)})
    error.got = SECRET
    redact_error(error, "bank.pay")
    assert error.message == str(error) == "args.iban: [redacted] is unknown."


@pytest.mark.django_db
def test_the_key_of_a_row_that_is_gone_is_not_told(handlers, caplog):
    @job("bank.greet", convert=True, redact=["customer"])
    def greet(customer: Group):
        pass

    group = Group.objects.create(pk=123456789, name="x")
    greet.enqueue(group)
    group.delete()
    run_jobs(raise_errors=False)
    (error,) = Job.objects.get().errors
    assert "no auth.Group with the primary key [redacted] any more. It was deleted" in error["message"]
    assert "123456789" not in f"{error} {caplog.text}"


def test_an_error_does_not_name_its_cause(paying):
    error = refusal("args.iban", SECRET)
    error.__cause__ = ValueError(SECRET)
    redact_error(error, "bank.pay")
    assert (error.__cause__, error.__suppress_context__) == (None, True)


def send(iban, city):
    """A task has a function of a module."""


def test_a_task_redacts_too(handlers):
    declared = task(send, redact=["iban"])
    assert hash(declared)
    type = type_of(send)
    assert redacted_args(type, {"iban": SECRET, "city": "Ulm"}) == {"iban": MASK, "city": "Ulm"}
    with refused(HandlerError, names="redact=['iban']"):
        task(send, redact="iban")


def test_the_policy_is_not_changed(paying, db):
    policy = UniquePolicy(keys=["type", "args"], args_keys=["iban"], on_conflict="ignore")
    first = paying.using(unique=policy).enqueue(iban=SECRET).job
    assert paying.using(unique=policy).enqueue(iban=SECRET).job.pk == first.pk
    assert paying.using(unique=policy).enqueue(iban="DE00").created
    first.refresh_from_db()
    assert first.args == {"iban": SECRET}


@pytest.mark.parametrize("redact", ["iban", 5, [""], [5], None])
def test_a_wrong_redact_is_refused_when_the_module_is_imported(handlers, redact):
    with refused(HandlerError, names="redact"):

        @job("bank.pay", redact=redact)
        def pay(iban):
            pass


def test_a_name_in_the_place_of_a_list_is_redacted(settings):
    settings.OJS_UNIQUE = {"REDACT": "iban"}
    assert redacted("t", {"iban": SECRET, "i": 1}) == {"iban": MASK, "i": 1}


@pytest.mark.parametrize("given", ["iban", 5, {"iban": 1}, [5], [""], None])
def test_a_wrong_setting_is_reported_and_breaks_no_page(settings, given):
    settings.OJS_UNIQUE = {"REDACT": given}
    (problem,) = problems()
    assert problem.startswith("OJS_UNIQUE['REDACT'] must be a list of names of members")
    assert redacted("t", {"city": "Ulm"}) == {"city": "Ulm"}


@pytest.mark.parametrize("given", [["iban"], ("iban",), {"iban"}, []])
def test_a_list_of_names_is_no_problem(settings, given):
    settings.OJS_UNIQUE = {"REDACT": given}
    assert list(problems()) == []


def error_of(call, *args, **options):
    with pytest.raises((InvalidRequest, TypeError)) as refusal:
        call(*args, **options)
    assert_hidden("".join(traceback.format_exception(refusal.value)) + str(getattr(refusal.value, "details", "")))


class Account:
    def __repr__(self):
        return SECRET


@pytest.mark.parametrize(
    "options",
    [
        {"args": {"iban": Account()}},
        {"args": {"iban": f"{SECRET}\0"}},
        {"args": {"account": Account()}},
        {"args": SECRET},
        {"args": {SECRET}},
        {"args": [{"iban": f"{SECRET}\0"}]},
        {"args": [f"{SECRET}\0"]},
        {"meta": {"iban": f"{SECRET}\0"}},
        {"meta": [SECRET]},
        {"iban": SECRET},
    ],
)
def test_no_message_of_a_refused_enqueue_quotes_the_secret(paying, db, options):
    error_of(Job.objects.enqueue, "bank.pay", **options)
    if "iban" not in options:
        (answer,) = Job.objects.enqueue_many([{"type": "bank.pay", **options}])
        assert_hidden(f"{answer.error} {answer.error.details}")


def test_no_message_about_a_call_that_does_not_fit_quotes_the_secret(paying, db):
    error_of(paying.enqueue, iban=SECRET, amuont=5)
    error_of(Job.objects.enqueue_many, paying.item(iban=SECRET))
    (answer,) = Job.objects.enqueue_many([["bank.pay", {"iban": SECRET}]])
    assert_hidden(f"{answer.error} {answer.error.details}")


def test_an_enqueue_by_key_that_may_not_mix_args_does_not_quote_them(paying, db, settings):
    settings.OJS_UNIQUE = {"REPLACE_MIXED_ARGS": False}
    paying.using(key="k").enqueue(iban=SECRET)
    error_of(Job.objects.enqueue, "bank.pay", [SECRET], key="k")
    error_of(Job.objects.explain, "bank.pay", [SECRET], key="k")


@pytest.mark.parametrize("changes", [{"args": SECRET}, {"options": [{"iban": SECRET}]}])
def test_the_log_about_a_periodic_job_that_was_changed_manually_does_not_quote_it(paying, db, caplog, changes):
    CronJob.objects.define("n", "* * * * *", "bank.pay", {"iban": SECRET})
    CronJob.objects.update(next_run_at=timezone.now() - timedelta(minutes=1), **changes)
    tick("default", timezone.now())
    assert_hidden(caplog.text)


def test_an_enqueue_and_a_run_look_up_no_names(paying, db, monkeypatch):
    def looked_up(*args):
        raise AssertionError

    for name in ("names_of", "names_of_any", "masked"):
        monkeypatch.setattr(redaction, name, looked_up)
    paying.using(meta=META).enqueue(iban=SECRET)
    Job.objects.enqueue_many([paying.item(iban=SECRET), paying.item(iban="x")])
    assert len(run_jobs()) == 3


def test_the_secret_is_in_no_repr(paying, db):
    request = Request("bank.pay", args=ARGS, meta=META, extra=META)
    incoming = read(request, Job, timezone.now())
    explained = Job.objects.explain("bank.pay", ARGS, meta=META, unique={"keys": ["type", "args"]})
    assert SECRET in explained.canonical_text
    shown = f"{request} {incoming!r} {RunResult(None, result=ARGS)} {explained!r}"
    assert SECRET not in shown
    assert "bank.pay" in shown


@pytest.mark.django_db
def test_an_event_has_the_result_without_the_secret(paying, settings, handlers):
    settings.OJS_UNIQUE = {"EVENTS": True}

    @job("bank.balance", redact=["iban"])
    def balance():
        return ARGS

    balance.enqueue()
    run_jobs()
    assert Job.objects.get().result == ARGS
    (done,) = Event.objects.filter(type="job.completed")
    assert done.data["result"]["amount"] == 5
    assert_hidden(str(done.to_dict()))


@pytest.mark.django_db
def test_a_lost_result_is_logged_without_the_secret(handlers, caplog):
    @job("bank.balance", redact=["iban"])
    def balance():
        return {"iban": Account()}

    balance.enqueue()
    run_jobs()
    assert "its result is lost" in caplog.text
    assert_hidden(caplog.text)


@pytest.mark.django_db
def test_args_that_cannot_be_read_again_are_logged_and_recorded_without_the_secret(handlers, caplog):
    @job("bank.pay", convert=True, redact=["iban"])
    def pay(iban: date):
        pass

    Job._base_manager.filter(pk=pay.enqueue(date(2026, 1, 31)).job.pk).update(args={"iban": SECRET})
    run_jobs(raise_errors=False)
    (error,) = Job.objects.get().errors
    assert error["code"] == "invalid_args"
    assert_hidden(str(error))
    assert_hidden(caplog.text)


@pytest.mark.django_db
def test_a_handler_gets_and_a_row_keeps_what_was_sent(handlers):
    got = []

    @job("bank.pay", redact=["iban"])
    def pay(iban, to, amount):
        got.append({"iban": iban, "to": to, "amount": amount})

    pay.using(meta=META).enqueue(**ARGS)
    run_jobs()
    stored = Job.objects.get()
    assert (got, stored.args, stored.meta) == ([ARGS], ARGS, META)


@pytest.mark.parametrize("call", ["enqueue", "item", "enqueue_on_commit"])
def test_a_misspelt_name_of_a_redacted_argument_is_masked_too(paying, call):
    with pytest.raises(InvalidRequest) as raised:
        getattr(paying, call)(ibann=SECRET, amount=5)
    assert SECRET not in f"{raised.value} {raised.value.details}"
    assert "'ibann'" in str(raised.value)
