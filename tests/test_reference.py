"""The reference equals the code: each table of names has them all, and no other."""

import ast
import inspect
import re
import runpy
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.dispatch import Signal
from django.utils import timezone

import django_ojs_unique
from django_ojs_unique import (
    DuplicateJob,
    Limit,
    RetryPolicy,
    UniquePolicy,
    conf,
    exceptions,
    presets,
    signals,
)
from django_ojs_unique.handlers.declare import job
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL, JobState
from django_ojs_unique.testing import travel
from tests.support.pages import ROOT, table, text_of

PICTURES = sorted(path.stem for path in (ROOT / "docs/images").glob("*.svg"))
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
    "OneToOneField": "UUID",
    "PositiveBigIntegerField": "bigint",
    "PositiveIntegerField": "int",
    "SmallIntegerField": "smallint",
    "TextField": "text",
    "UUIDField": "UUID",
}


def test_the_settings_are_the_settings() -> None:
    assert {row[0]: ast.literal_eval(row[1]) for row in table("docs/settings.md", "name")} == conf.DEFAULTS


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
    rows = [(name, row[2]) for row in table("docs/observability.md", "signal") for name in re.split(r"`, `", row[0])]
    declared = re.findall(r'^(\w+) = Signal\(\)\n"""(.+?)"""', inspect.getsource(signals), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in rows} == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    for name, described in declared:
        shown = set(re.findall(r"\w+", dict(rows)[name]))
        assert shown <= set(re.findall(r"\w+", described)), name


def test_the_fields_are_the_fields() -> None:
    policy = [row[0] for row in table("docs/policy.md", "field")]
    assert policy == [field.name for field in fields(UniquePolicy) if field.init]
    retry = {row[0] for row in table("docs/worker.md", "`RetryPolicy`")}
    assert retry == {field.name for field in fields(RetryPolicy) if field.init}
    assert [row[0] for row in table("docs/limits.md", "field")] == [field.name for field in fields(Limit)]
    *options, _unknown = inspect.signature(job).parameters
    assert [row[0] for row in table("docs/worker.md", "argument")] == options


def test_the_glossary_is_in_order() -> None:
    terms = [row[0] for row in table("docs/glossary.md", "term")]
    assert terms == sorted(set(terms))


def test_the_states_are_the_states() -> None:
    assert {row[0] for row in table("docs/states.md", "state")} == set(JobState)


@pytest.mark.parametrize(
    ("script", "function", "page"),
    [
        *((name, "draw", f"docs/images/{name}.svg") for name in PICTURES),
        ("commands", "write", "docs/commands.md"),
        ("options", "write", "docs/options.md"),
    ],
)
def test_what_is_written_from_the_code_is_up_to_date(script: str, function: str, page: str, monkeypatch: Any) -> None:
    assert text_of(page) == run_script(script, monkeypatch)[function](), "run `make reference`"


def run_script(name: str, monkeypatch: Any) -> dict[str, Any]:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return runpy.run_path(str(ROOT / f"docs/{name}.py"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_on_a_page_and_says_in_words_what_it_shows(name: str) -> None:
    label = re.search(r'<svg [^>]*role="img" aria-label="([^"]+)"', text_of(f"docs/images/{name}.svg"))
    assert label
    assert len(label[1].split()) >= 4
    alts = [
        alt
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for alt in re.findall(rf"!\[([^\]]*)\]\((?:docs/)?images/{name}\.svg\)", page.read_text())
    ]
    assert alts
    assert all(len(alt.split()) >= 4 for alt in alts)


@pytest.mark.slow
@pytest.mark.django_db
def test_the_picture_of_the_strategies_shows_what_enqueues_do(monkeypatch: Any) -> None:
    drawn = run_script("strategies", monkeypatch)
    cells = [(name, state) for name in drawn["POLICIES"] for state in drawn["STATES"].values()]
    for number, (name, state) in enumerate(cells):
        policy, args = drawn["POLICIES"][name], {"page": number}
        first = Job.objects.enqueue("search.index", args, unique=policy).job
        finished_at = timezone.now() if state in TERMINAL else None
        Job._base_manager.filter(pk=first.pk).update(state=state, finished_at=finished_at)
        try:
            seen: str = Job.objects.enqueue("search.index", args, unique=policy).outcome
        except DuplicateJob:
            seen = "rejected"
        assert drawn["outcome"](policy, state) == seen, (name, state)


@pytest.mark.django_db
def test_the_time_lines_show_what_enqueues_do(monkeypatch: Any) -> None:
    drawn = run_script("windows", monkeypatch)
    day = datetime(2030, 5, 1, tzinfo=UTC)
    for name, runs in drawn["POLICIES"].items():
        policy = getattr(presets, name)(timedelta(minutes=drawn["PERIOD"]))
        for minute in drawn["ENQUEUES"]:
            with travel(day + timedelta(minutes=minute)):
                waiting = Job._base_manager.filter(type=name, state__in=["available", "scheduled"])
                now = timezone.now()
                waiting.filter(run_at__lte=now).update(state="completed", finished_at=now)
                Job.objects.enqueue(name, unique=policy)
        seen = [
            tuple(
                (moment - day) // timedelta(minutes=1)
                for moment in (job.created_at, job.scheduled_at or job.created_at)
            )
            for job in Job.objects.filter(type=name).exclude(state="cancelled").order_by("created_at")
        ]
        assert runs(drawn["ENQUEUES"]) == seen, name


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_columns_of_a_table_are_those_of_the_model(model: Any) -> None:
    rows = [(name, kind) for name, kind, _ in table("docs/schema.md", f"`{model._meta.db_table}`")]
    assert rows == [(field.column, column_type(field) + ", null" * field.null) for field in model._meta.concrete_fields]


def column_type(field: Any) -> str:
    if field.is_relation:
        return column_type(field.target_field)
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
        "InvalidWorkflow",
        "OJSError",
    }, "these are shown with the exceptions"
    for module in ("exceptions", "idempotency", "presets", "signals", "tasks", "testing", "integrity", "worker"):
        assert module in shown
    assert set(import_module("django_ojs_unique.tasks").__all__) - {"discover"} <= shown
