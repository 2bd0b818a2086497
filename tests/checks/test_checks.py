"""Each system check: what triggers it, and what does not (docs: checks).

E010 and E011 are tested in tests/tasks/test_declare.py, W005 in tests/api/test_checks.py, W004 in
tests/operations/test_verify.py, and the rest of E001 in tests/enqueue/test_bad_input.py.
"""

import dataclasses
import re
from pathlib import Path

import pytest
from django.core.checks import Tags, run_checks
from django.core.checks.registry import registry as all_checks
from django.core.management import get_commands
from django.db import ConnectionHandler, connection
from django.db.models import CheckConstraint, Q
from django.test.utils import modify_settings

import django_ojs_unique
from django_ojs_unique import Cron, JobState, RetryPolicy, UniquePolicy, conf, job
from django_ojs_unique.checks import database
from django_ojs_unique.checks.handlers import OCCURRENCES, _occurrences, holes
from django_ojs_unique.checks.queues import check_queue_rules
from django_ojs_unique.db import capabilities
from django_ojs_unique.db.dialects import kind_of
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.ojs.states import ALL, INCOMPLETE
from django_ojs_unique.unique import presets
from tests.support.characters import without_emoji
from tests.support.refusals import refused

pytestmark = [
    pytest.mark.django_db(databases="__all__"),  # which the checks of the models ask
    pytest.mark.every_database,
]


def found(id, *, deploy=False):
    return [each for each in run_checks(include_deployment_checks=deploy) if each.id == f"django_ojs_unique.{id}"]


def found_in_database(id, alias="default"):
    messages = run_checks(tags=[Tags.database], databases=[alias])
    return [each for each in messages if each.id == f"django_ojs_unique.{id}"]


# Every message


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["py", "html"])
def test_nothing_in_the_package_refers_to_a_file_that_an_installed_package_does_not_have(suffix):
    for file in Path(django_ojs_unique.__file__).parent.rglob(f"*.{suffix}"):
        assert re.findall(r"\bdocs/|\.md\b|\bREADME\b", file.read_text()) == [], file


def test_a_hint_names_commands_and_modules_that_exist():
    package = Path(django_ojs_unique.__file__).parent
    sources = "".join(file.read_text() for file in [*(package / "checks").glob("*.py"), package / "tasks/backend.py"])
    commands = set(re.findall(r"`manage\.py (\w+)", sources))
    assert {"jobs", "migrate", "shell"} <= commands <= get_commands().keys()
    assert conf.DEFAULTS
    assert conf.API_DEFAULTS


@pytest.mark.slow
def test_a_project_with_default_settings_is_told_only_how_soon_it_gives_up():
    ids = {message.id for message in run_checks(include_deployment_checks=True, databases=["default", "other"])}
    assert [id for id in ids if id.startswith("django_ojs_unique")] == ["django_ojs_unique.W022"]


@pytest.mark.slow
def test_without_a_database_to_look_at_no_check_asks_one(django_assert_num_queries):
    ours = [
        check
        for check in all_checks.get_checks(include_deployment_checks=True)
        if check.__module__.startswith("django_ojs_unique") and Tags.database not in check.tags
    ]
    assert {check.__name__ for check in ours} >= {
        "check_settings",
        "check_policies",
        "check_retention",
        "check_commands",
    }
    with django_assert_num_queries(0):
        for check in ours:
            check(app_configs=None)


# Settings


def test_a_wrong_setting_says_where_all_settings_are(settings):
    settings.OJS_UNIQUE = {"DEFAULT_QEUE": "jobs"}
    (message,) = found("E001")
    assert message.msg.endswith("Did you mean 'DEFAULT_QUEUE'?")
    assert message.hint.startswith("django_ojs_unique.conf.DEFAULTS has all settings")


@pytest.mark.parametrize(
    "name", ["OJS_UNIQE", "OJS_UNIQUE_", "OJSUNIQUE", "OJS_UNIQUES", "OSJ_UNIQUE", "OJS_UNIUQE", "OJS__UNIQUE"]
)
@pytest.mark.parametrize("value", [{}, {"DEFAULT_QUEUE": "jobs"}, {"OTHER": 1, "API": {}}], ids=str)
def test_a_misspelt_name_of_the_setting_is_warned_of(name, value, settings):
    setattr(settings, name, value)
    (message,) = found("W012")
    assert message.msg == f"The setting {name} looks like OJS_UNIQUE, but nothing reads it."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OJS_UNIQUE", {"DEFAULT_QUEUE": "jobs"}),
        ("OJS_UNIQUE_URL", "https://example.com"),
        ("OJS_UNIQUE_URL", {"API": "https://example.com"}),
        ("OJS_UNIQUE2", {"mine": 1}),
        ("OJS_UNIQUE_", "DEFAULT_QUEUE"),
        ("OJS_UNIQUE_", None),
        ("UNIQUE", {"API": {}}),
        ("OJS_LIMITS", {}),
    ],
)
def test_a_setting_of_the_projects_own_is_left_alone(name, value, settings):
    setattr(settings, name, value)
    assert found("W012") == []


def test_time_zones_that_are_off_are_an_error(settings):
    assert found("E002") == []
    settings.USE_TZ = False
    assert "windows" in found("E002")[0].hint.lower()


# Handlers


def declare(policy=None, **options):
    """Declare a handler for the time of a test that asks for the fixture `handlers`."""
    return job("checked", unique=policy, **options)(lambda **kwargs: None)


HOLES = [
    (["available", "active", "retryable"], "scheduled"),
    (["scheduled", "active", "retryable"], "available"),
    (["scheduled", "available", "retryable", "completed"], "active"),
    (["scheduled", "available", "active"], "retryable"),
    (["scheduled", "available", "active", "completed"], "retryable"),
    (["available", "retryable"], "scheduled, active"),
    (["available"], "scheduled, active, retryable"),
    (["active"], "scheduled, available, retryable"),
    (["scheduled", "retryable"], "available, active"),
    (["completed"], "scheduled, available, active, retryable"),
    (["discarded"], "scheduled, available, active, retryable"),
]


@pytest.mark.parametrize(("states", "left_out"), HOLES, ids=[" ".join(states) for states, _ in HOLES])
def test_a_hole_in_the_states_is_explained(states, left_out, handlers):
    declare(UniquePolicy(states=states))
    (message,) = found("W006")
    assert "'checked' (tests.checks.test_checks.declare" in message.msg
    assert f"but not {left_out}." in message.msg
    assert f"Add {left_out} to states" in message.hint
    assert ("on_retry='discard'" in message.hint) is (left_out == "retryable")


MEANT = {
    "default": UniquePolicy(),
    "incomplete": UniquePolicy(states=INCOMPLETE),
    "incomplete without pending": UniquePolicy(states=INCOMPLETE - {JobState.PENDING}),
    "with completed": UniquePolicy(states=[*INCOMPLETE, "completed"]),
    "all": UniquePolicy(states=ALL),
    "waiting": UniquePolicy(states=presets.WAITING),
    "waiting without pending": UniquePolicy(states=presets.WAITING - {JobState.PENDING}),
    "scheduled": UniquePolicy(states=["scheduled"]),
    "cancelled": UniquePolicy(states=["cancelled"]),
    "superseded": UniquePolicy(states=["scheduled", "available", "active"], on_retry="discard"),
    "sidekiq": presets.sidekiq("PT1H"),
    "sidekiq start": presets.sidekiq("PT1H", "start"),
    "resque_uniqueue": presets.resque_uniqueue(),
    "river": presets.river(by_args=True),
    "river period": presets.river(by_period="PT1H"),
    "river states": presets.river(by_state=["pending", "scheduled", "available", "running"]),
    "newest_waits": presets.newest_waits(),
    "debounce": presets.debounce("PT1M"),
    "throttle": presets.throttle("PT1H"),
    "once_per_window": presets.once_per_window("PT1H"),
}


def test_every_preset_is_among_those_that_are_not_warned_of():
    functions = {name for name in presets.__all__ if callable(getattr(presets, name))}
    assert {name.partition(" ")[0] for name in MEANT} >= functions


def test_a_policy_without_keys_on_a_handler_with_arguments_is_named(handlers):
    wide, said = UniquePolicy(on_conflict="ignore"), {"keys": ["type"]}
    job("dropped", unique=wide, takes_context=True)(lambda context, day: None)
    job("copied", unique=dataclasses.replace(wide, on_conflict="replace"))(lambda *days: None)
    job("without", unique=wide, takes_context=True)(lambda context: None)
    job("said", unique=said)(lambda day: None)
    job("by_args", unique={"keys": ["args"]})(lambda day: None)
    first, second = found("W021")
    assert "'dropped' (tests.checks" in first.msg
    assert "its arguments (day) do not count" in first.msg
    assert "'copied'" in second.msg


def test_states_that_are_meant_so_are_not_warned_of(handlers):
    for number, policy in enumerate(MEANT.values()):
        job(f"checked{number}", unique=policy)(lambda: None)
    assert found("W006") == []


def test_a_job_without_a_policy_or_without_retries_has_no_hole(handlers):
    assert holes(declare().definition) == []
    unretried = {"states": ["scheduled", "available", "active"]}
    assert holes(declare(unretried, retry=RetryPolicy(max_attempts=2)).definition) == ["retryable"]
    assert holes(declare(unretried, retry=RetryPolicy(max_attempts=1)).definition) == []


def test_a_hole_can_be_silenced(handlers, settings):
    declare({"states": ["available"]})
    settings.SILENCED_SYSTEM_CHECKS = ["django_ojs_unique.W006"]
    assert [message.is_silenced() for message in found("W006")] == [True]


COMPLETED = sorted({*INCOMPLETE, "completed"})


@pytest.mark.slow
def test_eager_mode_is_said_before_a_deployment(settings):
    settings.OJS_UNIQUE = {"EAGER": True}
    (message,) = found("W013", deploy=True)
    assert "inside the requests" in message.msg
    assert found("W013") == []
    settings.DEBUG = True
    assert found("W013", deploy=True) == []
    settings.DEBUG, settings.OJS_UNIQUE = False, {"EAGER": False}
    assert found("W013", deploy=True) == []


@pytest.mark.slow
def test_handlers_that_give_up_after_seconds_are_said_before_a_deployment(handlers, settings, monkeypatch):
    monkeypatch.setattr(handlers, "_definitions", {})
    job("brief")(lambda: None)
    job("own", retry=RetryPolicy())(lambda: None)
    (message,) = found("W022", deploy=True)
    assert "Jobs of brief are discarded after about 3 seconds" in message.msg
    assert found("W022") == []
    settings.OJS_UNIQUE = {"RETRY": {"max_attempts": 17}}
    assert found("W022", deploy=True) == []
    settings.OJS_UNIQUE = {"RETRY": {"attempts": 17}}  # which is E001
    assert found("W022", deploy=True) == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"states": COMPLETED}, "keeps completed jobs for P7D, but"),
        ({"states": COMPLETED}, "stay for ever"),
        ({"states": COMPLETED, "period": "P8D"}, "stay for P8D"),
        ({"states": COMPLETED, "period": "P1M"}, "stay for P1M"),
        ({"states": COMPLETED, "period": "P8D", "window": "fixed"}, "stay for P8D"),
        ({"states": ["discarded"], "period": "P31D"}, "keeps discarded jobs for P30D"),
    ],
)
def test_finished_jobs_that_stay_for_longer_than_their_retention_are_said_before_a_deployment(policy, said, handlers):
    declare(policy)
    (message,) = found("W007", deploy=True)
    assert said in message.msg
    assert "period" in message.hint
    assert found("W007") == []


@pytest.mark.parametrize(
    "policy",
    [
        None,
        {},
        {"period": "P1Y"},
        {"states": COMPLETED, "period": "P7D"},
        {"states": COMPLETED, "window": "retention"},
        {"states": ["discarded"], "period": "P29D"},
    ],
    ids=str,
)
def test_finished_jobs_that_go_when_their_retention_is_over_are_not_spoken_of(policy, handlers):
    declare(policy)
    assert found("W007", deploy=True) == []


@pytest.mark.slow
def test_the_retention_that_counts_is_that_of_the_kind(handlers, settings):
    declare({"states": ["discarded"], "period": "P31D"}, retry=RetryPolicy(on_exhaustion="dead_letter"))
    assert found("W007", deploy=True) == []
    settings.OJS_UNIQUE = {"RETENTION": {"dead_letter": "P30D"}}
    assert "dead_letter jobs" in found("W007", deploy=True)[0].msg
    settings.OJS_UNIQUE = {"RETENTION": {"dead_letter": None}}
    assert found("W007", deploy=True) == []
    settings.OJS_UNIQUE = {"RETENTION": {"dead_letter": "soon"}}  # which is E001
    assert found("W007", deploy=True) == []


@pytest.mark.parametrize(
    ("cron", "policy"),
    [
        ("@daily", {"states": COMPLETED}),
        ("@daily", {"states": COMPLETED, "period": "P2D"}),
        ("@every PT1H", {"states": COMPLETED, "period": "PT1H"}),
        ("0 9 * * MON-FRI", {"states": COMPLETED, "period": "P2D"}),
        ("@hourly", {"states": COMPLETED, "period": "P1D", "window": "fixed"}),
        ("@daily", {"states": COMPLETED, "window": "retention"}),
        ("@daily", {"states": [*INCOMPLETE, "discarded"], "on_conflict": "ignore"}),
    ],
)
def test_a_periodic_job_that_meets_its_finished_self_is_warned_of(cron, policy, handlers):
    declare(policy, cron=cron)
    (message,) = found("W011")
    assert "'checked'" in message.msg
    assert repr(cron) in message.hint


@pytest.mark.parametrize(
    ("cron", "policy"),
    [
        ("@daily", None),
        ("@daily", {}),
        ("@daily", {"period": "P2D"}),
        ("@daily", {"states": COMPLETED, "period": "PT20H"}),
        ("@every PT25H", {"states": COMPLETED, "period": "P1D", "window": "fixed"}),
        ("@every P8D", {"states": COMPLETED, "window": "retention"}),
        ("@daily", {"states": COMPLETED, "on_conflict": "replace"}),
        ("@daily", {"states": COMPLETED, "keys": ["meta"], "meta_keys": ["cron_triggered_at"]}),
        (None, {"states": COMPLETED}),
    ],
)
def test_a_periodic_job_whose_policy_lets_the_next_one_in_is_fine(cron, policy, handlers):
    declare(policy, cron=cron)
    assert found("W011") == []


def test_a_periodic_job_near_the_end_of_time_is_fine(handlers):
    cron = Cron("@every P360000D")
    assert len(list(_occurrences(cron))) < OCCURRENCES
    declare({"states": COMPLETED, "period": "PT1S"}, cron=cron)
    assert found("W011") == []


# What a declaration refuses: args_keys that the handler does not take


def by(*names):
    return UniquePolicy(keys=["args"], args_keys=names)


def nothing():
    """Take no arguments."""


@pytest.mark.parametrize(
    ("function", "name", "suggested"),
    [
        (lambda user_id: None, "user", "'user_id'?"),
        (lambda user_id, *rest: None, "user", "'user_id'?"),
        (lambda user_id: None, "/user/id", "'user_id'?"),
        (nothing, "user_id", "none"),
    ],
)
def test_args_keys_that_a_handler_does_not_take_are_refused_at_its_declaration(function, name, suggested, handlers):
    with refused(HandlerError, option="unique", names=f"'{name}'") as caught:
        job("checked", unique=by(name))(function)
    assert suggested in caught.value.message


def test_the_context_is_no_argument_that_could_count(handlers):
    def handler(context, user_id):
        """Do nothing."""

    with refused(HandlerError, option="unique", names="'context'"):
        job("checked", unique=by("context"), takes_context=True)(handler)
    job("checked", unique=by("user_id"), takes_context=True)(handler)


@pytest.mark.parametrize(
    "function",
    [
        lambda user_id: None,
        lambda *, user_id: None,
        lambda **kwargs: None,
        lambda a, **kwargs: None,
        lambda *events: None,
        lambda event, /: None,
    ],
)
def test_args_keys_that_a_handler_takes_or_may_take_are_fine(function, handlers):
    assert job("checked", unique=by("user_id"))(function).definition.unique == by("user_id")


def test_args_keys_may_name_members_of_the_one_object_of_an_array(handlers):
    handler = job("checked", unique=by("id"))(lambda event, /: None)
    Job.objects.enqueue("checked", [{"id": 1, "at": "noon"}])
    assert Job.objects.explain("checked", [{"id": 1, "at": "night"}]).duplicates
    assert handler.definition.unique == by("id")


# Databases


@pytest.fixture
def sqlite(tmp_path, monkeypatch):
    """Have the checks look at a SQLite database of its own."""
    opened = []

    def connect(**options):
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "new.sqlite3", "OPTIONS": options}
        handler = ConnectionHandler({"default": settings})
        opened.append(handler["default"])
        monkeypatch.setattr(database, "connections", handler)
        return [message.id[-4:] for message in database.check_databases(databases=["default"])]

    yield connect
    for each in opened:
        each.close()


WAL = {"init_command": "PRAGMA journal_mode=WAL"}


def test_sqlite_as_django_sets_it_up_is_warned_of(sqlite):
    assert sqlite() == ["W001", "W002"]
    assert sqlite(transaction_mode="IMMEDIATE") == ["W002"]
    assert sqlite(transaction_mode="DEFERRED", **WAL) == ["W001"]


@pytest.mark.parametrize("mode", ["IMMEDIATE", "exclusive"])
def test_sqlite_with_both_options_is_fine(mode, sqlite):
    assert sqlite(transaction_mode=mode, **WAL) == []


def test_a_database_that_keeps_no_constraint_is_best_effort_and_not_told_to_fix_it(monkeypatch):
    monkeypatch.setattr(kind_of(connection), "mechanism", "")
    capabilities.forget()
    try:
        assert len(found_in_database("W003")) == 1
        assert found_in_database("W008") == []
    finally:
        capabilities.forget()


TABLE, CONSTRAINT = Job._meta.db_table, capabilities.CONSTRAINT


@pytest.fixture
def remake(db):
    """Make the unique key anew, under another condition; None drops it."""

    def make(condition):
        capabilities.forget()
        if connection.vendor == "mysql":
            generate(None if condition is None else f"CASE WHEN {condition} THEN fingerprint END")
            return
        with connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX {CONSTRAINT}")
            if condition is not None:
                cursor.execute(f"CREATE UNIQUE INDEX {CONSTRAINT} ON {TABLE} (fingerprint) WHERE {condition}")

    def generate(expression):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {TABLE} DROP INDEX IF EXISTS {CONSTRAINT}, DROP COLUMN IF EXISTS {CONSTRAINT}")
            if expression is not None:
                column = f"ADD COLUMN {CONSTRAINT} varchar(64) GENERATED ALWAYS AS ({expression}) STORED"
                cursor.execute(f"ALTER TABLE {TABLE} {column}, ADD UNIQUE INDEX {CONSTRAINT} ({CONSTRAINT})")

    if connection.vendor == "mysql":  # elsewhere the end of the test rolls this back
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT generation_expression FROM information_schema.columns"
                " WHERE table_schema = DATABASE() AND column_name = %s",
                [CONSTRAINT],
            )
            (declared,) = cursor.fetchone()
    yield make
    if connection.vendor == "mysql":
        generate(declared)
    capabilities.forget()


def holding_unique_key(states, compare):
    return " OR ".join(f"(state = '{state}' AND (unique_states & {state.bit}) {compare})" for state in states)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (None, "is missing"),
        ("1 = 1", "is not the one"),
        (holding_unique_key(INCOMPLETE, "<> 0"), "is not the one"),
        (f"({holding_unique_key(JobState, '<> 0')}) AND state <> 'retryable'", "is not the one"),
        (f"({holding_unique_key(JobState, '<> 0')}) AND priority = 0", "is not the one"),
    ],
    ids=["dropped", "always", "incomplete", "with-a-hole", "of-another-column"],
)
def test_a_unique_key_that_is_missing_or_altered_is_found(condition, said, remake):
    remake(condition)
    (message,) = found_in_database("W008")
    assert f"'ojs_unique_key' of table 'django_ojs_unique_job' {said}" in message.msg
    assert "jobs verify --fix --database default" in message.hint
    assert len(found_in_database("W003")) == 1
    assert not Job.objects.exists()  # whatever the check asked, the transaction goes on


@pytest.mark.slow
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_database_that_stores_local_times_is_found(zone, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "TIME_ZONE", zone)
    stores_them = zone == "Europe/Berlin" and connection.vendor != "postgresql"
    assert ["the times of Europe/Berlin" in each.msg for each in found_in_database("W015")] == [True] * stores_them


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.parametrize("condition", [None, "1 = 1"], ids=["dropped", "always"])
def test_what_the_hint_says_makes_the_unique_key_anew(condition, remake):
    remake(condition)
    (message,) = found_in_database("W008")
    exec("\n".join(re.findall(r"^\t\t(.*)$", message.hint, re.MULTILINE)), {})
    capabilities.forget()
    assert found_in_database("W008") == []


@pytest.mark.slow
def test_a_unique_key_whose_condition_is_written_otherwise_is_fine(remake):
    remake(holding_unique_key(reversed(JobState), "<> 0").replace("OR", "or"))
    assert found_in_database("W008") == found_in_database("W003") == []


@pytest.mark.slow
def test_another_constraint_that_is_missing_is_found(monkeypatch):
    never_made = CheckConstraint(condition=Q(priority__lt=0), name="ojs_never_made")
    monkeypatch.setattr(Job._meta, "constraints", [*Job._meta.constraints, never_made])
    (message,) = found_in_database("W008", "other")
    assert "Database 'other': constraint 'ojs_never_made'" in message.msg
    assert found_in_database("W003", "other") == []


def test_without_migrations_there_is_nothing_to_say_of_constraints(monkeypatch):
    monkeypatch.setattr(Job._meta, "db_table", "nowhere")
    assert found_in_database("W003") == found_in_database("W008") == []


# Queues


@pytest.fixture
def unique_queues(settings, handlers):
    job("mail.send", queue="emails")(lambda: None)

    def set(rule):
        settings.OJS_UNIQUE = {"UNIQUE_QUEUES": rule, "DEFAULT_QUEUE": "misc"}

    return set


@pytest.mark.slow
def test_a_unique_queue_that_nothing_uses_is_warned_of_with_a_suggestion(unique_queues):
    unique_queues(["emials", "emails", "wholly-different"])
    similar, other = found_in_database("W009")
    assert "names 'emials', which nothing uses" in similar.msg
    assert similar.hint.startswith("Did you mean 'emails'?")
    assert "names 'wholly-different'" in other.msg
    assert "'emails', 'misc'" in other.hint
    assert found("W009") == []  # without the database nobody can know


def test_a_unique_queue_that_code_or_settings_name_is_fine(unique_queues, settings):
    settings.TASKS = {"default": {"BACKEND": "nowhere.Backend", "QUEUES": ["of-tasks"]}}
    unique_queues(["emails", "misc", "of-tasks"])
    assert found_in_database("W009") == []


@pytest.mark.slow
def test_a_unique_queue_that_has_or_had_jobs_is_fine(unique_queues):
    unique_queues(["finished", "waiting", "paused"])
    assert len(found_in_database("W009")) == 3
    Job.objects.enqueue("t", queue="finished").job.cancel()
    Job.objects.enqueue("t", queue="waiting")
    Queue.objects.pause("paused")
    assert found_in_database("W009") == []
    assert len(found_in_database("W009", "other")) == 3


@pytest.mark.parametrize("rule", [True, False, []])
def test_a_rule_that_names_no_queue_names_none_that_nothing_uses(rule, unique_queues):
    unique_queues(rule)
    assert found_in_database("W009") == []


def test_a_table_of_another_release_that_is_not_migrated_yet_stops_nothing(unique_queues, monkeypatch):
    unique_queues(["emials"])
    monkeypatch.setattr(Job._meta.get_field("key"), "column", "of_the_next_release")
    assert check_queue_rules(databases=["default"]) == []


def test_a_migration_that_is_not_applied_is_named(newer_code):
    assert [message.msg for message in found_in_database("W020")] == [newer_code]


# Commands


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install another app with a command, before ours or behind it, for the time of a block."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(app, place, command="runworker", base="django.core.management.base import BaseCommand"):
        commands = tmp_path / app / "management/commands"
        commands.mkdir(parents=True)
        for folder in (commands, commands.parent, commands.parent.parent):
            (folder / "__init__.py").touch()
        (commands / f"{command}.py").write_text(f"from {base} as Base\n\nclass Command(Base):\n    pass\n")
        return modify_settings(INSTALLED_APPS={place: [app]})

    return make


@pytest.mark.parametrize(("place", "winner"), [("prepend", "rival_first"), ("append", "django_ojs_unique")])
def test_two_apps_with_a_runworker_are_warned_of_and_the_winner_is_named(place, winner, install):
    with install("rival_first" if place == "prepend" else "rival_last", place):
        (message,) = found("W010")
    assert f"`manage.py runworker` is that of '{winner}'" in message.msg
    assert "`manage.py ojs_worker` is always ours" in message.hint


def test_a_rival_that_cannot_be_imported_is_warned_of_and_stops_nothing(install):
    with install("rival_broken", "prepend", base="nowhere import Command"):
        assert len(found("W010")) == 1


@pytest.mark.slow
def test_a_command_without_an_alias_is_warned_of_without_one(install):
    with install("rival_jobs", "prepend", "jobs"):
        (message,) = found("W010")
    assert "have a command 'jobs'" in message.msg
    assert "ojs_worker" not in message.hint


def test_commands_of_other_names_are_fine(install):
    with install("neighbour", "prepend", "run_worker"):
        assert found("W010") == []


@pytest.mark.slow
def test_a_project_may_extend_our_command_but_must_list_it_first(install):
    base = "django_ojs_unique.management.commands.runworker import Command"
    with install("extending", "prepend", base=base):
        assert found("W010") == []
    with install("extending_in_vain", "append", base=base):
        assert len(found("W010")) == 1


# Periodic jobs and several databases


def test_a_periodic_job_of_an_unknown_database_is_an_error(handlers):
    job("stray", cron=Cron("@daily", using="othr"))(lambda: None)
    job("right", cron=Cron("@daily", using="other"))(lambda: None)
    (message,) = found("E005")
    assert message.msg.startswith("The periodic job 'stray'")
    assert "'other'" in message.hint


def test_a_database_with_jobs_that_leaves_out_periodic_jobs_is_found(handlers, settings):
    job("right", cron=Cron("@daily", using="default"))(lambda: None)
    assert found_in_database("W017", "other") == []
    job("undecided", cron="@daily")(lambda: None)
    (message,) = found_in_database("W017", "other")
    assert message.msg.endswith("in 'default' only: undecided.")
    assert found_in_database("W017", "default") == []
    settings.DATABASE_ROUTERS = ["tests.support.routers.JobsOnOther"]
    assert found_in_database("W017", "other") == []


@pytest.mark.parametrize(
    ("pool", "most"),
    [(True, 4), ({}, None), ({"max_size": 7}, 7), ({"min_size": 5}, 5), ({"max_size": 8}, None), (False, None)],
)
def test_a_pool_that_is_too_small_for_a_worker_is_warned_of_with_the_numbers(monkeypatch, pool, most):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", pool)
    problem = database.pool_problem("default", 4)
    assert (f"at most {most} connections, but a worker with 4 threads needs up to 8" in problem) is (most is not None)
    assert bool(problem) is (most is not None)


@pytest.mark.django_db
def test_a_pool_that_is_too_small_is_found_by_the_check(monkeypatch):
    monkeypatch.setattr(database, "pool_problem", lambda alias, concurrency: f"{alias} has {concurrency} threads")
    messages = {message.id: message.msg for message in database.check_databases(["default"])}
    assert messages["django_ojs_unique.W018"] == "default has 4 threads"


@pytest.mark.slow
@pytest.mark.every_database
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "mysql", reason="only MariaDB has character sets of columns")
def test_columns_without_all_characters_are_warned_of():
    def warned():
        return [message.id for message in database.check_databases(["default"]) if message.id.endswith("W019")]

    with without_emoji("skipped"):
        assert warned() == ["django_ojs_unique.W019"]
    assert warned() == []
