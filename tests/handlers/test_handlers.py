"""`@job`: what it refuses when a module is imported, and what a handler's `enqueue` does."""

import copy
import inspect

import pytest

from django_ojs_unique import InvalidPolicy, InvalidRequest, InvalidRetryPolicy, Limit, UniquePolicy, job
from django_ojs_unique.exceptions import HandlerError, UnknownJobType
from django_ojs_unique.handlers.declare import OPTIONS
from django_ojs_unique.models import Job
from django_ojs_unique.options import ENQUEUE
from tests.support.refusals import refused


@pytest.fixture
def send(handlers):
    @job("mail.send", queue="mails", priority=7, timeout="PT2S", unique={"keys": ["args"], "args_keys": ["user_id"]})
    def send(user_id, locale="en"):
        return f"{user_id} {locale}"

    return send


def test_calling_a_handler_runs_it_here_and_now(send):
    assert send(1, locale="de") == "1 de"
    assert (send.__name__, "mail.send" in repr(send)) == ("send", True)


@pytest.mark.django_db
def test_enqueue_names_the_arguments_and_takes_what_the_handler_declared(send):
    row = send.enqueue(42, locale="de").job
    row.refresh_from_db()
    assert row.args == {"user_id": 42, "locale": "de"}
    assert (row.type, row.queue, row.priority, row.timeout_ms) == ("mail.send", "mails", 7, 2000)
    assert row.unique_policy == UniquePolicy(keys=["args"], args_keys=["user_id"])


@pytest.mark.django_db
def test_using_overrides_options_for_the_next_enqueues_only(send):
    assert send.using(queue="slow", unique=None).enqueue(1).job.queue == "slow"
    assert send.enqueue(1).job.queue == "mails"


@pytest.mark.django_db
def test_the_context_is_no_argument_of_the_job(handlers):
    @job("t", takes_context=True)
    def handler(context, n):
        """Do nothing."""

    assert handler.enqueue(3).job.args == {"n": 3}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [((), {}, "'user_id'"), ((1, 2, 3), {}, "positional"), ((1,), {"lang": "de"}, "'lang'")],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_stored(send, args, kwargs, named):
    with refused(InvalidRequest, "args", names=named):
        send.enqueue(*args, **kwargs)
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_keywords_beyond_the_parameters_are_sent_where_the_handler_takes_any(handlers):
    @job("t", unique={"keys": ["args"], "args_keys": ["anything"]})
    def handler(a, **more):
        """Do nothing."""

    assert handler.enqueue(1, anything=2).job.args == {"a": 1, "anything": 2}


@pytest.mark.django_db
def test_positional_arguments_without_names_cannot_be_sent_by_name(handlers):
    @job("t")
    def handler(*numbers):
        """Do nothing."""

    with refused(InvalidRequest, "args", names="*numbers"):
        handler.enqueue(1, 2)


def declare(type="t", function=lambda user_id: None, **options):
    return job(type, **options)(function)


@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ({"type": "Send Mail"}, InvalidRequest, {"field": "type", "names": "'Send Mail'"}),
        ({"type": 7}, InvalidRequest, {"field": "type", "names": "string"}),
        ({"queue": "My Queue"}, InvalidRequest, {"field": "queue"}),
        ({"unique": {"argz": 1}}, InvalidPolicy, {"field": "unique.argz"}),
        ({"retry": {"max_attempts": -1}}, InvalidRetryPolicy, {"field": "retry.max_attempts"}),
        (
            {"unique": {"keys": ["args"], "args_keys": ["user"]}},
            HandlerError,
            {"option": "unique", "names": "'user_id'?"},
        ),
        ({"takes_context": True}, HandlerError, {"names": "'context'"}),
        (
            {"limit": {"key": ["args.usr_id"], "running": 1}},
            HandlerError,
            {"option": "limit", "names": "'args.usr_id'"},
        ),
        ({"limit": {"key": ["args/user/id"], "running": 1}}, HandlerError, {"option": "limit", "names": "'user_id'?"}),
        ({"limit": [{"name": "a", "running": 1}, {"running": 0}]}, InvalidRequest, {"field": "limit[1].running"}),
    ],
)
def test_a_wrong_declaration_is_refused_when_it_is_made(handlers, options, error, facts):
    with refused(error, **facts):
        declare(**options)


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda user_id: None, ["args.user_id", "meta.any", "queue"]),
        (lambda user_id: None, ["args/user_id/0"]),
        (lambda user_id: None, ["args"]),
        (lambda user_id, **more: None, ["args.any"]),
        (lambda user_id, /: None, ["args.any"]),
        (lambda *users: None, ["args.any"]),
    ],
)
def test_a_limit_names_parameters_or_what_cannot_be_known(handlers, function, key):
    limit = {"key": key, "running": 1}
    assert declare(function=function, limit=limit).definition.limits == (Limit(**limit),)


def test_a_cron_line_whose_arguments_do_not_fit_the_handler_is_refused(handlers):
    with refused(HandlerError, names="cron: args"):
        declare(function=lambda to: None, cron="@daily")


@pytest.mark.parametrize("name", ["timeout", "lease"])
@pytest.mark.parametrize("value", ["30s", 0, -1, "P1M", True])
def test_a_length_of_time_that_is_none_is_refused_at_the_declaration(handlers, name, value):
    with refused(InvalidRequest, name):
        declare(**{name: value})


def test_two_handlers_of_one_type_are_refused_with_both_places(handlers, send):
    def other():
        """Do nothing."""

    with refused(HandlerError, "type", names="'mail.send'") as caught:
        declare("mail.send", other)
    assert all(place in caught.value.message for place in ("<locals>.send", "<locals>.other"))


def test_an_unknown_type_is_said_with_a_suggestion(send, handlers):
    with refused(UnknownJobType, "type", names="'mail.send'?"):
        handlers.get("mail.sent")


@pytest.mark.django_db
def test_a_project_may_refuse_types_without_a_handler(send, settings):
    settings.OJS_UNIQUE = {"REQUIRE_HANDLER": True}
    with refused(UnknownJobType, "type", names="'mail.send'?"):
        Job.objects.enqueue("mail.sent")
    assert not Job.objects.exists()


def test_an_option_that_enqueue_does_not_have_is_refused_by_name(send):
    with refused(InvalidRequest, "kay", names="'key'?"):
        send.using(kay="x")


@pytest.mark.parametrize(
    ("args", "suggested"),
    [
        ({"user_idd": 5}, "'user_id'"),
        ({"user_id": 5, "Locale": "de"}, "'locale'"),
        ({"zzz": 5}, ""),
        ({"contxt": 5}, ""),
        ({"rests": 5}, ""),
        ({}, ""),
    ],
)
def test_an_argument_that_a_handler_does_not_take_is_answered_with_the_one_it_resembles(handlers, args, suggested):
    @job("mail.send", takes_context=True)
    def send(context, user_id, *rest, locale="en"):
        """Do nothing."""

    with refused(InvalidRequest, "args") as caught:
        send.enqueue(**args)
    assert suggested in caught.value.message.rpartition("(got ")[2].partition(").")[2].strip()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", r"enqueue\("),
        ("apply_async", r"using\("),
        ("send", r"enqueue\("),
        ("enqueu", "'enqueu'$"),
    ],
)
def test_a_method_of_another_job_system_is_answered_with_ours_and_is_still_missing(send, name, hint):
    with pytest.raises(AttributeError, match=hint) as caught:
        getattr(send, name)
    assert (caught.value.name, caught.value.obj) == (name, send)
    assert not hasattr(send, name)
    assert getattr(send, name, None) is None


def test_a_function_with_an_attribute_of_that_name_keeps_it(handlers):
    def function():
        """Do nothing."""

    function.delay = 5
    assert job("t")(function).delay == 5


def test_a_handler_can_be_copied(send):
    assert copy.copy(send).definition is send.definition


@pytest.mark.parametrize(
    ("option", "hint"),
    [("quue", r"'queue'\?$"), ("takes_contxt", r"'takes_context'\?$"), ("period", "'unique', ")],
)
def test_an_unknown_option_of_a_declaration_is_answered_with_the_one_it_resembles(handlers, option, hint):
    with pytest.raises(TypeError, match=f"'{option}'.*{hint}"):
        job("t", **{option: 1})


def test_the_options_of_a_declaration_are_those_that_it_takes():
    *parameters, _unknown = inspect.signature(job).parameters
    assert sorted(parameters[1:]) == sorted(OPTIONS)


def test_the_options_of_a_handler_are_those_of_enqueue():
    *parameters, _unknown = inspect.signature(Job.objects.enqueue).parameters
    assert sorted(parameters[parameters.index("args") + 1 :]) == sorted(ENQUEUE)


def test_an_option_among_the_arguments_is_refused_with_the_hint(send):
    with refused(InvalidRequest, "args", names="using(key=...).enqueue"):
        send.enqueue(1, key="x")
