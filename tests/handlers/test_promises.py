"""A coroutine or a generator is no result: nobody has done its work."""

import asyncio
import functools
import warnings

import pytest

from django_ojs_unique import Discard, job
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.handlers.conversion.arguments import ConvertedArguments
from django_ojs_unique.models import Job
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker import Worker
from tests.support.refusals import refused

ONCE = {"max_attempts": 1}
WAYS = {"drain": lambda: Worker().run(drain=True), "run_jobs": lambda: run_jobs(raise_errors=False), "eager": int}


def plainly(function):
    """Decorate a function as many packages do, which do not ask whether it is async."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


async def a_coroutine(n=0):
    return n


def a_generator(n=0):
    yield n


async def an_async_generator(n=0):
    yield n


class Sends:
    def __init__(self, definition=5):
        self.definition = definition

    def __call__(self, n: int = 0) -> int:
        return n + self.definition


class SendsAsync:
    async def __call__(self, n=0):
        await asyncio.sleep(0)
        return n + 1


class Generates:
    def __call__(self):
        yield


@pytest.fixture(params=WAYS)
def run(handlers, transactional_db, request, settings):
    """Enqueue a job and run it, in one of the ways there are; return its row."""

    def run(args=None):
        settings.OJS_UNIQUE = {"EAGER": request.param == "eager"}
        row = Job.objects.enqueue("t", args).job
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            WAYS[request.param]()
        row.refresh_from_db()
        return row

    return run


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("function", [a_coroutine, a_generator, an_async_generator])
def test_a_promise_behind_a_decorator_fails_the_attempt_and_the_error_names_the_function(run, function, atomic):
    job("t", retry=ONCE, atomic=atomic)(plainly(function))
    row = run()
    assert (row.state, row.result) == ("discarded", None)
    assert row.errors[0]["type"] == "django_ojs_unique.exceptions.HandlerError"
    assert f"{__name__}.{function.__name__} returned" in row.errors[0]["message"]


def test_a_promise_that_an_async_handler_returns_fails_the_attempt(run):
    @job("t", retry=ONCE)
    async def handler():
        return a_coroutine()

    assert run().errors[0]["type"] == "django_ojs_unique.exceptions.HandlerError"


def test_an_async_skip_unless_behind_a_decorator_fails_the_attempt_of_a_plain_handler(run):
    @job("t", retry=ONCE, skip_unless=plainly(a_coroutine))
    def handler(n):
        raise Discard("It ran.")

    assert "a_coroutine returned" in run({"n": 0}).errors[0]["message"]


@pytest.mark.parametrize("n", [0, 1])
def test_an_async_skip_unless_of_an_async_handler_may_be_decorated(run, n):
    @job("t", skip_unless=plainly(a_coroutine))
    async def handler(n):
        """Do nothing."""

    assert bool(run({"n": n}).skipped) is (n == 0)


@pytest.mark.parametrize("function", [a_generator, an_async_generator, functools.partial(a_generator, 1), Generates()])
def test_a_generator_is_refused_as_a_handler(handlers, function):
    with refused(HandlerError, names="yield"):
        job("t")(function)


@pytest.mark.parametrize("wanted", [a_coroutine, a_generator, SendsAsync(), functools.partial(a_coroutine, 1)])
def test_a_plain_handler_cannot_have_an_async_skip_unless(handlers, wanted):
    with refused(HandlerError, names="skip_unless"):
        job("t", skip_unless=wanted)(lambda n: None)


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (Sends(), 8),
        (SendsAsync(), 4),
        (functools.partial(Sends(), n=3), 8),
        (functools.partial(a_coroutine, n=3), 3),
    ],
)
def test_objects_and_partials_are_handlers_like_their_functions(run, function, result):
    job("t")(function)
    assert run({"n": 3}).result == result


def test_an_object_keeps_its_attributes_and_its_handler_its_own(handlers):
    handler = job("t")(Sends(definition=1))
    assert handler(n=1) == 2
    assert (handler.definition.type, handler.definition.place) == ("t", f"{__name__}.Sends.__call__")


def test_the_type_hints_of_a_partial_are_those_of_its_function(handlers):
    handler = job("t", convert=True)(functools.partial(Sends()))
    assert ConvertedArguments(handler.definition).from_json({"n": 3}) == {"n": 3}
