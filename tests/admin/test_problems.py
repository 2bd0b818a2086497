"""What is wrong with a request is said in the language of the visitor."""

import ast

import pytest
from django.urls import reverse
from django.utils import translation

from django_ojs_unique import job
from django_ojs_unique.admin.sentences import translate
from django_ojs_unique.models import CronJob
from tests.admin.test_languages import bracketed, words  # noqa: F401
from tests.support.pages import ROOT

pytestmark = pytest.mark.django_db

OJS, UNIQUE = "canonical cron durations limits names retry selection", "fingerprint keys members policy"
ENQUEUE = "by_key new_job request resolved_options values"
FOLDERS = {"ojs": OJS, "unique": UNIQUE, "enqueue": ENQUEUE}
MODULES = [f"{folder}/{name}.py" for folder, names in FOLDERS.items() for name in names.split()]
MODULES += ["models/cron.py", "handlers/registry.py"]
PYTHON_ONLY = {
    "is a x1, which JSON cannot carry",
    "has an object key that is a x1",
    "Object keys are strings.",
    "must be the name of a job type, not its handler",
    "Write x1, or call the handler's own enqueue(...) with its arguments.",
    "is held by x1 jobs, of the types x1",
    "Say which with type= or key_scope=.",
    "Leave one of them out: a pending job waits until somebody activates it.",
    "Call it, as in presets.river(by_args=True).",
    "x1 A moment is scheduled_at=….",
    "x1 Handlers live in each app's jobs.py.",
    "No handler is registered at all.",
    "A job's arguments go into args: write args=x1.x1",
    "must be a whole number x1",
    "has a x1 field",
    "Send x1, as job x1 has.",
    "is not a known x1",
    "x1 x1",
}
"""What no form can say, as its values are JSON, and what is put together of parts that are translated."""

CRON = {
    "name": "nightly", "description": "", "expression": "0 3 * * *", "timezone": "UTC", "overlap_policy": "skip",
    "enabled": "on", "type": "email.send", "args": "{}", "options": "{}",
}  # fmt: skip


def samples(node):
    """Yield the texts that an expression can be, with x1 in the place of each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "x1" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from samples(node.body)
        yield from samples(node.orelse)


def texts(module):
    """Yield what a module says of a field, and what to write instead."""
    for node in ast.walk(ast.parse((ROOT / "django_ojs_unique" / module).read_text())):
        found = []
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("at", "invalid", "_invalid", "_wrong"):
                found = [
                    *node.args[1:2],
                    *node.args[3:4],
                    *(each.value for each in node.keywords if each.arg == "hint"),
                ]
            elif name == "ValueError" and module == "ojs/durations.py":
                found = node.args
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in (
            "hint",
            "problem",
            "_HINT",
            "_AS_STRING",
        ):
            found = [node.value]
        for each in found:
            yield from filter(None, samples(each))


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_each_problem_has_a_wording(module):
    found = set(texts(module)) - PYTHON_ONLY
    with translation.override("de"):
        assert {text for text in found if translate(text) == text} == set()


def test_problems_are_looked_for():
    assert len({text for module in MODULES for text in texts(module)}) > 90


@pytest.mark.parametrize(
    ("english", "german"),
    [
        (
            "unique.keys: must be a list of strings (got 5).",
            "unique.keys: muss eine Liste von Strings sein (erhalten: 5).",
        ),
        (
            "unique.keys[0]: is not a known dimension (got 'arg'). Did you mean 'args'?",
            "unique.keys[0]: ist keine bekannte Dimension (erhalten: 'arg'). Meinten Sie 'args'?",
        ),
        (
            "args do not fit shop.jobs.send(user_id: int) -> None: missing a required argument: 'user_id'.",
            "Die Argumente passen nicht zu shop.jobs.send(user_id: int) -> None: Es fehlt 'user_id'.",
        ),
        ("ada: Cancelled.", "ada: Abgebrochen."),
        ("shop: Some text of a project.", "shop: Some text of a project."),
    ],
)
def test_a_problem_is_put_together_of_its_parts(english, german):
    with translation.override("de"):
        assert translate(english) == german
    assert translate(english) == english


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
