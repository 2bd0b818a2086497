"""What is wrong with a request is said in the language of the visitor."""

import ast
import copy
import pickle

import pytest
from django.urls import reverse
from django.utils import translation

from django_ojs_unique import job
from django_ojs_unique.admin.sentences import translate, translate_stored
from django_ojs_unique.exceptions import InvalidRequest, Message, did_you_mean
from django_ojs_unique.handlers.registry import misfit, registry
from django_ojs_unique.models import CronJob
from tests import messages
from tests.admin.test_languages import bracketed, words  # noqa: F401

pytestmark = pytest.mark.django_db

CRON = {
    "name": "nightly", "description": "", "expression": "0 3 * * *", "timezone": "UTC", "overlap_policy": "skip",
    "enabled": "on", "type": "email.send", "args": "{}", "options": "{}",
}  # fmt: skip


PYTHON_ONLY = {
    "is a x1, which JSON cannot carry",
    "has an object key that is a x1",
    "Write x1, or call the handler's own enqueue(...) with its arguments.",
    "is held by x1 jobs, of the types x1",
    "x1 A moment is scheduled_at=….",
    "A job's arguments go into args: write args=x1.x1",
    ". Write x1.",
    "Did you mean x1?",
}
"""What no form can say, as its values are JSON."""


def sample(node):
    return "".join(part.value if isinstance(part, ast.Constant) else "x1" for part in node.values)


def test_each_problem_of_a_form_can_be_translated():
    found = [each for path in messages.shown_by_forms() for each in messages.problems(path)]
    assert {sample(each) for each in found if isinstance(each, ast.JoinedStr)} <= PYTHON_ONLY
    assert len(found) > 90


def test_a_message_is_a_text_that_remembers_its_parts():
    part = Message("is longer than {count} characters", count=5)
    message = Message.joined(" ", [Message("{field}: {problem}.", field="{name}", problem=part), "A {plain} text."])
    assert message == "{name}: is longer than 5 characters. A {plain} text."
    with translation.override("de"):
        assert translate(message) == "{name}: ist länger als 5 Zeichen. A {plain} text."
        assert translate(ValueError(message)) == translate(message)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copied_message_is_plain_text(copied):
    message = copied(Message("is longer than {count} characters", count=5))
    assert (type(message), message) == (str, "is longer than 5 characters")


@pytest.mark.parametrize(
    ("english", "german"),
    [
        (
            InvalidRequest.at("unique.keys", "must be a list of strings", value=5).message,
            "unique.keys: muss eine Liste von Strings sein (erhalten: 5).",
        ),
        (
            InvalidRequest.at(
                "unique.keys[0]", "is not a known name", value="arg", hint=did_you_mean("arg", ["args"])
            ).message,
            "unique.keys[0]: ist kein bekannter Name (erhalten: 'arg'). Meinten Sie 'args'?",
        ),
        ("Some text of a project.", "Some text of a project."),
    ],
)
def test_a_problem_is_put_together_of_its_parts(english, german):
    with translation.override("de"):
        assert translate(english) == german
    assert translate(english) == english


def test_arguments_that_do_not_fit_are_told_in_the_language_of_the_visitor(send):
    definition = registry.get("email.send")
    for args, german in (
        ({}, "Es fehlt 'user_id'"),
        ({"user_ix": 1}, "Es fehlt 'user_id' (Meinten Sie 'user_id'?)"),
        ([1, 2], "Es sind zu viele"),
    ):
        problem = misfit(definition, args)
        with translation.override("de"):
            assert (
                translate(problem)
                == f"Die Argumente passen nicht zu {definition.place}(user_id: int) -> None: {german}"
            )


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("Cancelled.", "Abgebrochen."),
        ("Cancelled; a live duplicate was cancelled.", "Abgebrochen; ein lebendes Duplikat wurde abgebrochen."),
        ("Cancelled as a duplicate of 5.", "Abgebrochen als Duplikat von 5."),
        ("Workflow 5 is cancelled.", "Ablauf 5: abgebrochen."),
        ("The job was cancelled.", "Der Job wurde abgebrochen."),
        ("Some text of a project.", "Some text of a project."),
    ],
)
def test_what_was_stored_is_told_in_the_language_of_the_visitor(english, german):
    with translation.override("de"):
        assert translate_stored(english) == german
    assert translate_stored(english) == english


@pytest.fixture
def send(handlers):
    @job("email.send", unique={"keys": ["type", "args"], "args_keys": ["user_id"]})
    def send(user_id: int) -> None: ...


@pytest.mark.parametrize(
    "form",
    [
        {"type": "Email"},
        {"queue": "No Queue"},
        {"args": "5"},
        {"args": '{"user_id": 9007199254740993}'},
        {"args": '{"user": 1}'},
        {"args": '{"user_id": "\\u0000"}'},
        {"args": "[" * 100 + "]" * 100},
        {"meta": "[]"},
        {"unique": "5"},
        {"unique": '{"keyz": []}'},
        {"unique": '{"keys": ["type"], "states": []}'},
        {"unique": '{"period": "1h"}'},
        {"unique": '{"args_keys": ["other"], "keys": ["type", "args"]}'},
        {"unique": '{"on_conflict": "drop"}'},
        {"key": "a", "unique": "{}"},
        {"key": "a" * 600},
        {"key": "a\u202e"},
        {"key_mode": "preserve_run_at"},
        {"delay": "soon"},
        {"delay": "PT1M", "scheduled_at": "2030-01-01 00:00"},
    ],
    ids=str,
)
def test_the_explain_form_says_all_problems_in_the_language_of_the_visitor(form, admin_client, send, bracketed):  # noqa: F811
    answer = admin_client.post(reverse("admin:django_ojs_unique_explain"), {"type": "email.send", **form})
    found = [error for errors in answer.context_data["form"].errors.values() for error in errors]
    assert found
    assert english(found) == []


@pytest.mark.parametrize(
    "form",
    [
        {"name": "No Name"},
        {"expression": "x"},
        {"expression": "61 * * * *"},
        {"expression": "0 0 31 2 *"},
        {"expression": "@noon"},
        {"expression": "@every soon"},
        {"expression": "@every PT0.1S"},
        {"timezone": "Mars"},
        {"type": "Email"},
        {"args": "5"},
        {"options": "[]"},
        {"options": '{"quue": 1}'},
        {"options": '{"priority": 1000}'},
        {"options": '{"retry": {"max_attempts": -1}}'},
        {"options": '{"retry": {"initial_interval": "1h"}}'},
        {"options": '{"tags": [1]}'},
        {"options": '{"timeout": "PT0S"}'},
    ],
    ids=str,
)
def test_the_form_of_a_cron_job_says_all_problems_in_the_language_of_the_visitor(form, admin_client, send, bracketed):  # noqa: F811
    answer = admin_client.post(reverse("admin:django_ojs_unique_cronjob_add"), {**CRON, **form})
    found = [error for errors in answer.context_data["adminform"].form.errors.values() for error in errors]
    assert found
    assert english(found) == []
    assert not CronJob.objects.exists()


def english(errors):
    """Return the words of some errors that were not translated, but for what the visitor typed and what code names."""
    names = "unique keys args meta options states period retry user_id other drop keyz quue soon noon Mars email send"
    return [word for error in errors for word in words(error) if word not in names.split()]
