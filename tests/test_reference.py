"""The reference equals the code: each table of names has them all, and no other."""

import ast
import inspect
import re
import runpy
from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.dispatch import Signal

import django_ojs_unique
from django_ojs_unique import InvalidPolicy, RetryPolicy, UniquePolicy, conf, exceptions, signals
from django_ojs_unique.handlers.declare import job
from django_ojs_unique.ojs.fingerprint import canonical_text
from django_ojs_unique.ojs.states import JobState
from tests.support.pages import ROOT, table, text_of

MODELS = list(apps.get_app_config("django_ojs_unique").get_models())
TYPES = {
    "BigAutoField": "bigint",
    "BigIntegerField": "bigint",
    "BooleanField": "bool",
    "DateTimeField": "datetime",
    "FloatField": "float",
    "ForeignKey": "UUID",
    "IntegerField": "int",
    "JSONField": "JSON",
    "PositiveBigIntegerField": "bigint",
    "PositiveIntegerField": "int",
    "SmallIntegerField": "smallint",
    "TextField": "text",
    "UUIDField": "UUID",
}


def test_the_settings_are_the_settings() -> None:
    for page in ("README.md", "docs/settings.md"):
        assert {row[0]: ast.literal_eval(row[1]) for row in table(page, "name")} == conf.DEFAULTS


def test_the_settings_of_the_api_are_those() -> None:
    assert {row[0]: ast.literal_eval(row[1]) for row in table("docs/settings.md", "member")} == conf.API_DEFAULTS


def test_the_errors_are_the_errors() -> None:
    classes = {
        name: cls.code
        for name, cls in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(cls, exceptions.OJSError)
    }
    assert {row[0]: row[1] for row in table("docs/errors.md", "class")} == classes


def test_the_checks_are_the_checks() -> None:
    sources = [path.read_text() for path in (ROOT / "django_ojs_unique").rglob("*.py")]
    ids = {found for source in sources for found in re.findall(r'"(django_ojs_unique\.[EW]\d+)"', source)}
    assert [row[0] for row in table("docs/checks.md", "id")] == sorted(ids)


def test_the_signals_are_the_signals() -> None:
    rows = [(name, row[2]) for row in table("docs/watching.md", "signal") for name in re.split(r"`, `", row[0])]
    declared = re.findall(r'^(\w+) = Signal\(\)\n"""(.+?)"""', inspect.getsource(signals), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in rows} == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    for name, described in declared:
        shown = set(re.findall(r"\w+", dict(rows)[name]))
        assert shown <= set(re.findall(r"\w+", described)), name


def test_the_fields_are_the_fields() -> None:
    policy = [row[0] for row in table("docs/policy.md", "field")]
    assert policy == [field.name for field in fields(UniquePolicy) if field.init]
    assert [row[0] for row in table("README.md", "field")] == policy
    retry = {row[0] for row in table("docs/worker.md", "`RetryPolicy`")}
    assert retry == {field.name for field in fields(RetryPolicy) if field.init}
    *options, _unknown = inspect.signature(job).parameters
    assert [row[0] for row in table("docs/worker.md", "argument")] == options


@pytest.mark.parametrize("row", table("docs/policy.md", "policy"), ids=lambda row: row[0])
def test_a_refused_policy_says_what_the_page_says(row: list[str]) -> None:
    policy, message = row
    with pytest.raises(InvalidPolicy) as refusal:
        UniquePolicy.parse(ast.literal_eval(policy))
    assert str(refusal.value) == message


@pytest.mark.parametrize("row", table("docs/policy.md", "policy | args"), ids=lambda row: row[1])
def test_a_policy_that_does_not_fit_says_what_the_page_says(row: list[str]) -> None:
    policy, args, meta, message = row
    with pytest.raises(InvalidPolicy) as refusal:
        canonical_text(
            UniquePolicy.parse(ast.literal_eval(policy)),
            type="report.daily",
            queue="default",
            args=ast.literal_eval(args),
            meta=ast.literal_eval(meta),
        )
    assert str(refusal.value) == message


def test_the_states_are_the_states() -> None:
    assert {row[0] for row in table("docs/states.md", "state")} == set(JobState)


@pytest.mark.parametrize(
    ("script", "function", "page"),
    [
        ("diagram", "draw", "docs/images/states.svg"),
        ("house", "draw", "docs/images/house.svg"),
        ("commands", "write", "docs/commands.md"),
    ],
)
def test_what_is_written_from_the_code_is_up_to_date(script: str, function: str, page: str) -> None:
    written = runpy.run_path(str(ROOT / f"docs/{script}.py"))[function]()
    assert text_of(page) == written, "run `make reference`"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_columns_of_a_table_are_those_of_the_model(model: Any) -> None:
    rows = [(name, kind, null) for name, kind, null, _ in table("docs/schema.md", f"`{model._meta.db_table}`")]
    assert rows == [
        (field.column, column_type(field), "yes" if field.null else "no") for field in model._meta.concrete_fields
    ]


def column_type(field: Any) -> str:
    kind = field.get_internal_type()
    return f"char({field.max_length})" if kind == "CharField" else TYPES[kind]


def test_the_constraints_and_indexes_are_those_of_the_models() -> None:
    for heading, options in (("constraint", "constraints"), ("index", "indexes")):
        named = [one.name for model in MODELS for one in getattr(model._meta, options)]
        assert sorted(row[0] for row in table("docs/schema.md", heading)) == sorted(named)


def test_the_python_api_has_every_public_name() -> None:
    page = text_of("docs/api.md")
    shown = set(re.findall(r"^\.\. auto\w+:: django_ojs_unique\.(?:[\w.]+\.)?(\w+)$", page, re.MULTILINE))
    assert set(django_ojs_unique.__all__) - shown == {"DuplicateJob", "InvalidPolicy", "InvalidRequest"} | {
        "InvalidRetryPolicy",
        "OJSError",
    }, "these are shown with the exceptions"
    for module in ("exceptions", "idempotency", "presets", "signals", "tasks", "testing", "integrity", "worker"):
        assert module in shown
    assert set(import_module("django_ojs_unique.tasks").__all__) - {"discover"} <= shown
