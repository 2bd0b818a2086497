"""The options of a job are described once: what else names them agrees with the description."""

import inspect
import pickle
from collections.abc import Callable
from copy import copy, deepcopy

import pytest

from django_ojs_unique import Limit, RetryPolicy, UniquePolicy, job
from django_ojs_unique.admin.explain_form import ExplainForm
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job
from django_ojs_unique.options import DECLARED, ENQUEUE, INHERIT, LENGTH, OPTIONS, declared
from django_ojs_unique.wire.enqueue import show_options

STORED = {name: option for name, option in OPTIONS.items() if option.column}
GIVEN = {
    "queue": "emails",
    "priority": 7,
    "unique": {"keys": ["type"]},
    "retry": {"max_attempts": 2},
    "timeout": "PT1.5S",
    "lease": 60,
    "limit": {"running": 1, "name": "one"},
}


def test_the_signature_of_enqueue_has_the_options_and_their_defaults() -> None:
    parameters = inspect.signature(Job.objects.enqueue).parameters
    defaults = {name: one.default for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert defaults == {name: option.default for name, option in ENQUEUE.items()}


def test_the_signature_of_a_declaration_has_the_options() -> None:
    assert inspect.signature(job).parameters.keys() >= DECLARED.keys()


def test_a_request_has_each_option_with_its_default() -> None:
    request = Request("t")
    assert {name: getattr(request, name) for name in OPTIONS} == {
        name: option.default for name, option in OPTIONS.items()
    }


def test_what_is_declared_is_read_and_the_rest_has_its_fallback() -> None:
    assert declared({}) == {name: option.fallback for name, option in DECLARED.items()}
    assert declared(GIVEN) == {
        **declared({}),
        **GIVEN,
        "unique": UniquePolicy(keys=["type"]),
        "retry": RetryPolicy(max_attempts=2),
        "timeout": 1500,
        "lease": 60_000,
        "limit": (Limit(running=1, name="one"),),
    }


def test_only_what_none_switches_off_is_inherited_by_default() -> None:
    switched_off = {name for name, option in OPTIONS.items() if option.default is INHERIT}
    assert switched_off == {"unique", "retry", "timeout", "lease", "limit"}


@pytest.mark.parametrize("name", STORED)
def test_each_stored_option_has_a_field(name: str) -> None:
    assert Job._meta.get_field(STORED[name].column)


@pytest.mark.parametrize("copied", [copy, deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copied_request_inherits_as_the_first_one(copied: Callable[[Request], Request]) -> None:
    assert copied(Request("t")).unique is INHERIT


def test_no_two_options_have_the_same_name_in_json() -> None:
    names = [name for option in OPTIONS.values() for name in option.wire]
    assert len(names) == len(set(names))


def test_json_has_lengths_in_milliseconds_and_delays_with_a_sign() -> None:
    stored = {"timeout": "PT1.5S", "lease": 60, "limit": [], "retry": None, "delay": 90, "expires_in": "P1D"}
    assert show_options(stored) == {
        "timeout_ms": 1500,
        "visibility_timeout_ms": 60_000,
        "limits": [],
        "scheduled_at": "+PT1M30S",
        "expires_at": "+P1D",
    }
    assert show_options({"timeout": "nonsense", "key": "k"}) == {"timeout": "nonsense", "key": "k"}
    assert all(option.written.endswith("_ms") for option in OPTIONS.values() if option.kind is LENGTH)


def test_the_form_of_an_explanation_has_the_options_that_decide() -> None:
    deciding = {name for name, option in OPTIONS.items() if option.decides}
    assert {"type", "args", "context", "without_policy", *deciding} == ExplainForm.base_fields.keys()


def test_help_for_a_terminal_has_no_marks() -> None:
    assert all(not set("`[]*") & set(option.plain_help) for option in OPTIONS.values())
