import copy
import json
import pickle
from types import SimpleNamespace

import pytest

from django_ojs_unique import exceptions
from django_ojs_unique.api.wire import errors  # noqa: F401  its errors are of the family, too
from django_ojs_unique.exceptions import (
    DuplicateJob,
    InvalidPolicy,
    InvalidRequest,
    OJSError,
    did_you_mean,
    shorten,
)
from django_ojs_unique.handlers import control


def family(cls):
    return [cls, *(below for child in cls.__subclasses__() for below in family(child))]


def example(cls):
    if cls is DuplicateJob:
        return DuplicateJob(SimpleNamespace(id="019078a3-b5c7-7def-8a12-3456789abcde", state="active"), "f" * 64)
    if cls.__module__ == control.__name__:
        return cls(reason="what and how")
    return cls("what and how", details={"field": "type"})


@pytest.mark.parametrize("cls", family(OJSError))
@pytest.mark.parametrize("travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_survives_a_pickle_and_a_copy_with_all_it_carries(cls, travel):
    error = example(cls)
    arrived = travel(error)
    assert type(arrived) is cls
    assert str(arrived) == str(error) == error.message
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize("cls", family(OJSError))
def test_an_error_has_a_code_a_default_message_and_details_that_are_json(cls):
    error = example(cls)
    json.dumps(error.details)
    assert error.code == cls.code
    assert cls.__doc__.splitlines()[0] == cls.__doc__.strip().splitlines()[0] != ""
    if cls is not DuplicateJob:
        assert str(cls()) == cls.__doc__.splitlines()[0]
        assert cls().details == {}


def test_the_codes_are_those_that_clients_know():
    assert {cls.__name__: cls.code for cls in family(OJSError) if cls.__module__ == exceptions.__name__} == {
        "OJSError": "backend_error",
        "InvalidRequest": "invalid_request",
        "InvalidPolicy": "invalid_request",
        "InvalidRetryPolicy": "validation_error",
        "InvalidWorkflow": "invalid_workflow",
        "UnknownJobType": "invalid_request",
        "DuplicateJob": "duplicate",
        "JobIdTaken": "duplicate",
        "JobCancelled": "cancelled",
        "InvalidTransition": "conflict",
        "LeaseLost": "conflict",
        "StepsChanged": "handler_error",
        "UnstorableStep": "invalid_request",
        "TransactionLeftOpen": "handler_error",
        "DeclaredInCode": "conflict",
        "PayloadTooLarge": "payload_too_large",
        "InvalidArgs": "invalid_args",
        "HandlerError": "invalid_request",
        "NotMigrated": "backend_error",
        "Contended": "backend_error",
    }


def test_only_contention_and_a_handlers_own_wish_are_worth_another_try():
    retryable = {cls.__name__ for cls in family(OJSError) if cls.retryable and ".api." not in cls.__module__}
    assert retryable == {"Contended", "Retry"}


def test_a_duplicate_is_told_exactly_as_the_specification_prints_it():
    error = example(DuplicateJob)
    assert {"code": error.code, "message": error.message, "details": error.details} == {
        "code": "duplicate",
        "message": "A job matching the uniqueness key already exists",
        "details": {"existing_job_id": "019078a3-b5c7-7def-8a12-3456789abcde", "existing_job_state": "active"},
    }
    assert error.existing_job_id == error.existing_job.id
    assert error.existing_job_state == "active"
    assert error.fingerprint == "f" * 64


def test_an_error_may_carry_another_code():
    assert OJSError("x", code="unsupported").code == "unsupported"
    assert OJSError.code == "backend_error"


def test_an_error_at_a_field_says_what_is_wrong_what_came_and_how_to_fix_it():
    error = InvalidPolicy.at("unique.period", "is not a duration", value="1h", hint="Write 'PT1H'.")
    assert error.message == "unique.period: is not a duration (got '1h'). Write 'PT1H'."
    assert error.details == {"field": "unique.period", "value": '"1h"'}
    assert isinstance(error, InvalidPolicy)


def test_an_error_without_a_value_or_a_hint_says_neither():
    assert InvalidRequest.at("args", "is too deep").message == "args: is too deep."
    assert InvalidRequest.at("args", "is null", value=None).message == "args: is null (got None)."


class Hostile:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000,
        [["x" * 1000] * 1000] * 1000,
        dict.fromkeys(range(1000), "x" * 1000),
        10**1000,
        -(10**5000),
        Hostile(),
        {1: Hostile()},
    ],
    ids=["text", "lists", "object", "number", "huge-number", "hostile", "hostile-inside"],
)
def test_a_value_is_shown_in_about_eighty_characters_whatever_it_is(value):
    assert len(shorten(value)) <= 100


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("typ", "Did you mean 'type'?"),
        ("TYPE", "Did you mean 'type'?"),
        ("zzz", "Valid: 'type', 'queue'."),
        (7, "Valid: 'type', 'queue'."),
        ("", "Valid: 'type', 'queue'."),
    ],
)
def test_did_you_mean_suggests_or_lists(word, said):
    assert did_you_mean(word, ("type", "queue")) == said
