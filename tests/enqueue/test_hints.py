"""An argument that JSON cannot carry: the error says what to send instead, in words that fit its type."""

import dataclasses
import functools
import io
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from django_ojs_unique import InvalidRequest, UniquePolicy, job
from django_ojs_unique.enqueue import announcements
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.canonical import plain
from django_ojs_unique.worker import Worker
from tests.support.refusals import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Suit(Enum):
    HEARTS = "hearts"


@dataclasses.dataclass
class Point:
    x: int


class Model:
    """As in Pydantic, whose models can also be iterated over."""

    def __iter__(self):
        yield "x", 1

    def model_dump(self):
        """Return the members."""


class Strange:
    def __getattr__(self, name):
        raise RuntimeError("no")


def refusal(value, path="args"):
    with pytest.raises(InvalidRequest) as caught:
        plain({"it": value}, path)
    assert caught.value.details["field"] == f"{path}.it"
    return caught.value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Decimal("9.99"), "is a Decimal, # Send str(it), and write Decimal(it) in the handler."),
        (NOON, "is a datetime, # Send it.isoformat(), and write datetime.fromisoformat(it) in the handler."),
        (NOON.date(), "is a date, # Send it.isoformat(), and write date.fromisoformat(it) in the handler."),
        (NOON.time(), "is a time, # Send it.isoformat(), and write time.fromisoformat(it) in the handler."),
        (timedelta(1), "is a timedelta, # Send it.total_seconds(), and write timedelta(seconds=it) in the handler."),
        (UUID(int=1), "is a UUID, # Send str(it), and write UUID(it) in the handler."),
        (Path("/srv"), "# Send str(it), and write Path(it) in the handler."),
        (Suit.HEARTS, "is a Suit, # Send it.value, and write Suit(it) in the handler."),
        (b"x", "is a bytes, # Send base64.b64encode(it).decode(), and write base64.b64decode(it) in the handler."),
        ({2, 1}, "is a set, # Send sorted(it), so that equal sets are equal lists."),
        (frozenset(), "is a frozenset, # Send sorted(it), so that equal sets are equal lists."),
        (MappingProxyType({}), "is a mappingproxy, # Send dict(it)."),
        ((n for n in ()), "is a generator, # Send list(it)."),
        (range(3), "is a range, # Send list(it)."),
        (deque(), "is a deque, # Send list(it)."),
        (Fraction(1, 3), "is a Fraction, # Send float(it)."),
        (Point(1), "is a Point, # Send dataclasses.asdict(it), and write Point(**it) in the handler."),
        (Model(), 'is a Model, # Send it.model_dump(mode="json"), and write Model(**it) in the handler.'),
        (Point, "is a type, # Send a name, and look it up in the handler."),
        (refusal, "is a function, # Send a name, and look it up in the handler."),
        (functools.partial(refusal), "is a partial, # Send a name, and look it up in the handler."),
        (io.StringIO("x"), "is a StringIO, # Send the name of the file, and open it in the handler."),
        (object(), "is a object, # Send the text, numbers and lists that it is made of."),
        (Strange(), "is a Strange, # Send the text, numbers and lists that it is made of."),
        (2**53, "# Send it as a string."),
        (gettext_lazy("yes"), "# Send str(it), in the language that is active now."),
        (ContentFile(b"x"), "is a ContentFile, # Send the name under which it is stored, and open it in the handler."),
        (HttpRequest(), "is a HttpRequest, # Send what the handler needs of it, such as request.user.pk."),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_each_type_has_its_own_hint(value, said):
    what, hint = said.split("# ")
    message = refusal(value).message
    assert message.startswith(f"args.it: {what}")
    assert message.endswith(f"). {hint}")


def test_what_the_handler_is_told_to_write_gives_the_value_back():
    it = NOON.isoformat()
    assert datetime.fromisoformat(it) == NOON
    assert date.fromisoformat(NOON.date().isoformat()) == NOON.date()
    assert time.fromisoformat(NOON.time().isoformat()) == NOON.time()
    assert timedelta(seconds=timedelta(days=1, microseconds=1).total_seconds()) == timedelta(days=1, microseconds=1)
    assert Suit(Suit.HEARTS.value) is Suit.HEARTS


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ({"user": {1}}, "Send sorted(user)"),
        ({"order": {"items": [0, {"ids": {1}}]}}, "Send sorted(ids)"),
        ({"teams": [{1}]}, "Send sorted(teams[0])"),
        ([{1}], "Send sorted(args[0])"),
        ({"user id": {1}}, "Send sorted(value)"),
        ({"{it}": {1}}, "Send sorted(value)"),
    ],
)
def test_the_hint_calls_the_value_by_its_own_name(args, hint):
    with pytest.raises(InvalidRequest) as caught:
        plain(args, "args")
    assert hint in caught.value.message


@pytest.mark.django_db
def test_a_model_instance_is_sent_as_its_primary_key_and_nobody_asks_for_its_text(django_assert_num_queries, handlers):
    @job("email.welcome")
    def welcome(user):
        """Do nothing."""

    user = User(username="ada", pk=7)
    for one in (user, SimpleLazyObject(lambda: user)):
        with django_assert_num_queries(0), pytest.raises(InvalidRequest) as caught:
            welcome.enqueue(one)
        hint = "Send user.pk, and load it in the handler."
        assert caught.value.message == f"args.user: is a User, which JSON cannot carry. {hint}"
    welcome.enqueue(user.pk)


@pytest.mark.django_db
def test_a_queryset_or_a_manager_is_sent_as_its_primary_keys_and_is_not_evaluated(django_assert_num_queries):
    User.objects.create(username="ada")
    for users in (User.objects.all(), User.objects):
        for args in ({"users": users}, [users]):
            with django_assert_num_queries(0), pytest.raises(InvalidRequest) as caught:
                Job.objects.enqueue("t", args)
            assert '.values_list("pk", flat=True)), and load them in the handler.' in caught.value.message


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (42, "Write [42]."),
        ("text", "Write ['text']."),
        ({1}, "Send sorted(args)"),
        ((n for n in ()), "Send list(args)."),
        (b"x", "Send base64.b64encode(args)"),
        (User(pk=1), "Send args.pk"),
        (User.objects.all(), 'Send list(args.values_list("pk", flat=True))'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_args_that_are_neither_an_object_nor_an_array_have_a_hint_as_well(args, hint, django_assert_num_queries):
    with django_assert_num_queries(0), refused(InvalidRequest, "args") as caught:
        Job.objects.enqueue("t", args)
    assert hint in caught.value.message


@pytest.mark.django_db(transaction=True)
def test_a_result_is_returned_otherwise_and_nothing_is_said_of_the_handler(handlers, caplog):
    job("t")(lambda: {"price": Decimal(1)})
    Job.objects.enqueue("t")
    Worker().run(drain=True)
    assert "its result is lost: result.price: is a Decimal" in caplog.text
    assert caplog.text.strip().endswith("Return str(price).")


@pytest.mark.django_db
@pytest.mark.parametrize("strategy", ["ignore", "replace"])
def test_the_first_job_that_a_policy_without_keys_drops_is_logged(handlers, caplog, monkeypatch, strategy):
    monkeypatch.setattr(announcements, "_warned_of", set())
    caplog.set_level("WARNING", announcements.logger.name)
    for keys in ({"keys": ["type"]}, {}):
        policy = UniquePolicy(**keys, on_conflict=strategy)
        for day in range(3):
            Job.objects.enqueue("said" if keys else "left.out", {"day": day}, unique=policy)
    (record,) = (record for record in caplog.records if "says no keys" in record.getMessage())
    assert record.levelname == "WARNING"
    assert "Job type 'left.out': the enqueue with args {'day': 1} was" in record.getMessage()
