"""Periodic jobs: what handlers declare is written down, and each occurrence is fired once by whoever is there."""

import logging
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import (
    Cron,
    DuplicateJob,
    InvalidPolicy,
    InvalidRequest,
    RetryPolicy,
    UniquePolicy,
    job,
    presets,
)
from django_ojs_unique.handlers.registry import Definition, registry
from django_ojs_unique.idempotency import Heal
from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue
from django_ojs_unique.options import declared
from django_ojs_unique.worker import Worker
from tests.support.processes import together

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 2, 12, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Every:
    """Stands for a `Heal`."""

    def __init__(self, every):
        self.every = every


def tick(now=NOON):
    return cron.tick("default", now)


def sync(now=NOON):
    cron.sync("default", now)


def define(name="hourly", expression="0 * * * *", type="t", args=None, *, due=NOON, **options):
    """Define an entry whose next occurrence is at ``due``."""
    entry = CronJob.objects.define(name, expression, type, args, **options)
    CronJob.objects.filter(pk=name).update(next_run_at=due)
    return entry


def outcome(name="hourly"):
    return CronJob.objects.get(pk=name).last_outcome


def finalized(job):
    Job._base_manager.filter(pk=job.pk).update(state="completed", finished_at=NOON)


# Firing


def test_a_due_entry_enqueues_one_job_and_waits_for_its_next_occurrence():
    define(args={"n": 1}, queue="reports", priority=5)
    assert tick() == NOON + HOUR
    fired = Job.objects.get()
    assert (fired.type, fired.args, fired.queue, fired.priority) == ("t", {"n": 1}, "reports", 5)
    assert fired.meta == {"cron_name": "hourly", "cron_triggered_at": "2026-02-12T12:00:00Z"}
    entry = CronJob.objects.get()
    assert (entry.last_outcome, entry.last_job_id, entry.run_count) == ("created", fired.pk, 1)
    assert (entry.last_run_at, entry.next_run_at) == (NOON, NOON + HOUR)


def test_an_entry_that_is_not_due_is_left_alone():
    define(due=NOON + MINUTE)
    assert tick() == NOON + MINUTE
    assert not Job.objects.exists()


def test_a_disabled_entry_is_left_alone():
    define(enabled=False)
    assert tick() is None
    assert not Job.objects.exists()


def test_the_next_moment_is_that_of_the_first_entry_to_come():
    assert tick() is None
    define("a", due=NOON + 2 * HOUR)
    define("b", due=NOON + MINUTE)
    assert tick() == NOON + MINUTE


def test_the_options_are_those_of_the_job():
    define(
        meta={"tenant": "acme"},
        timeout=MINUTE,
        lease=2 * MINUTE,
        schema="urn:s",
        extra={"trace": 1},
        unique=UniquePolicy(),
        retry=RetryPolicy(max_attempts=7),
    )
    tick()
    (fired,) = Job.objects.all()
    assert fired.meta["tenant"] == "acme"
    assert (fired.timeout_ms, fired.visibility_timeout_ms) == (60_000, 120_000)
    assert (fired.schema, fired.extra, fired.max_attempts) == ("urn:s", {"trace": 1}, 7)
    assert fired.unique_policy == UniquePolicy()


def test_an_idle_tick_writes_nothing():
    define(due=NOON + HOUR)
    with CaptureQueriesContext(connection) as queries:
        tick()
    assert len(queries) == 2
    assert not [query for query in queries if "UPDATE" in query["sql"]]


def test_after_downtime_the_latest_missed_occurrence_fires_and_no_other():
    define(due=NOON - 30 * DAY)
    assert tick(NOON + 7 * MINUTE) == NOON + HOUR
    assert Job.objects.get().meta["cron_triggered_at"] == "2026-02-12T12:00:00Z"


def test_a_clock_that_jumps_back_fires_nothing_twice():
    define(overlap_policy="allow")
    tick(NOON)
    assert tick(NOON - HOUR) == NOON + HOUR
    assert tick(NOON) == NOON + HOUR
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_an_occurrence_that_was_fired_is_not_fired_again_even_if_the_entry_forgot():
    for policy in ("skip", "allow", "cancel_previous", "enqueue"):
        define(policy.replace("_", "-"), overlap_policy=policy)
    tick()
    CronJob.objects.update(next_run_at=NOON)
    tick()
    CronJob.objects.update(next_run_at=NOON, last_job_id=None, last_outcome="")
    tick()
    assert Job.objects.filter(state="available").count() == Job.objects.count() == 4
    assert set(CronJob.objects.values_list("last_outcome", "run_count")) == {("already", 1)}


@pytest.mark.parametrize("on_conflict", ["reject", "ignore", "replace"])
def test_a_unique_policy_does_not_take_an_occurrences_own_job_for_another(on_conflict):
    define(unique={"on_conflict": on_conflict})
    tick()
    CronJob.objects.update(next_run_at=NOON, last_job_id=None)
    tick()
    assert outcome() == "already"
    assert Job.objects.get().state == "available"


def test_the_id_of_a_job_tells_its_occurrence():
    id = cron.job_id("hourly", NOON)
    assert id == cron.job_id("hourly", NOON)
    assert id not in (cron.job_id("daily", NOON), cron.job_id("hourly", NOON + MINUTE))
    assert (id.version, id.variant) == (7, "specified in RFC 4122")
    assert id.int >> 80 == NOON.timestamp() * 1000


def test_an_entry_whose_times_were_changed_manually_fires_at_the_new_ones():
    define()
    CronJob.objects.update(expression="30 * * * *")
    assert tick() == NOON + 30 * MINUTE
    assert not Job.objects.exists()


def test_what_a_tick_did_is_rolled_back_as_a_whole(monkeypatch):
    define()
    monkeypatch.setattr(cron, "_log_failure", lambda entry, error: 1 / 0)
    CronJob.objects.update(options={"priority": 1000})
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tick()
    assert CronJob.objects.get().next_run_at == NOON
    CronJob.objects.update(options={})
    tick()
    assert Job.objects.count() == 1


# Overlap


def test_skip_does_not_fire_while_the_previous_job_is_unfinished():
    define()
    tick()
    (first,) = Job.objects.all()
    for state in ("available", "active", "retryable"):
        Job._base_manager.filter(pk=first.pk).update(state=state)
        CronJob.objects.update(next_run_at=NOON + HOUR)
        assert tick(NOON + HOUR) == NOON + 2 * HOUR
        assert outcome() == "skipped"
    finalized(first)
    tick(NOON + 2 * HOUR)
    assert (outcome(), Job.objects.count(), CronJob.objects.get().run_count) == ("created", 2, 2)


def test_allow_fires_in_any_case():
    define(overlap_policy="allow")
    for hour in range(3):
        tick(NOON + hour * HOUR)
    assert Job.objects.filter(state="available").count() == 3


def test_cancel_previous_cancels_what_has_not_finished():
    define(overlap_policy="cancel")
    tick()
    (first,) = Job.objects.all()
    tick(NOON + HOUR)
    first.refresh_from_db()
    assert first.state == "cancelled"
    second = Job.objects.get(state="available")
    finalized(second)
    tick(NOON + 2 * HOUR)
    assert sorted(Job.objects.values_list("state", flat=True)) == ["available", "cancelled", "completed"]


def test_cancel_previous_cancels_nothing_when_its_own_job_is_invalid():
    define(overlap_policy="cancel_previous")
    tick()
    CronJob.objects.update(options={"priority": 1000})
    tick(NOON + HOUR)
    assert (outcome(), Job.objects.get().state) == ("failed", "available")


def test_enqueue_lets_one_job_wait_behind_the_running_one():
    define(overlap_policy="enqueue")
    tick()
    tick(NOON + HOUR)
    assert (outcome(), Job.objects.count()) == ("skipped", 1)
    Job._base_manager.update(state="active")
    tick(NOON + 2 * HOUR)
    assert (outcome(), Job.objects.count()) == ("created", 2)
    tick(NOON + 3 * HOUR)
    assert (outcome(), Job.objects.count()) == ("skipped", 2)
    tick(NOON + 4 * HOUR)
    entry = CronJob.objects.get()
    assert (entry.last_outcome, entry.outcome_count, entry.last_outcome_at) == ("skipped", 2, NOON + 4 * HOUR)
    assert entry.last_run_at == NOON + 2 * HOUR


def test_the_overlap_policy_comes_before_the_unique_policy():
    define(unique={"on_conflict": "reject"})
    tick()
    tick(NOON + HOUR)
    assert outcome() == "skipped"
    assert not SuppressedEnqueue.objects.exists()


@pytest.mark.parametrize(
    ("on_conflict", "became"), [("reject", "rejected"), ("ignore", "deduplicated"), ("replace", "replaced")]
)
def test_the_unique_policy_holds_between_the_jobs_of_an_entry_and_all_others(on_conflict, became):
    Job.objects.enqueue("t", unique={})
    define(unique={"on_conflict": on_conflict})
    tick()
    entry = CronJob.objects.get()
    assert (entry.last_outcome, entry.next_run_at) == (became, NOON + HOUR)
    assert (entry.run_count, entry.last_job_id is not None) == ((1, True) if became == "replaced" else (0, False))
    assert Job.objects.filter(state="available").count() == 1
    assert SuppressedEnqueue.objects.count() == 1


# What can go wrong with one entry


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"queue": "No Such Name"}},
        {"options": {"unique": {"keys": ["nothing"]}}},
        {"options": {"colour": "red"}},
        {"options": {"id": "1"}},
        {"options": {"meta": "text"}},
        {"options": ["queue"]},
        {"type": "No Type"},
    ],
    ids=str,
)
def test_an_entry_that_cannot_be_enqueued_is_logged_and_stops_no_other(change, caplog):
    define("a", due=NOON - HOUR)
    define("b")
    CronJob.objects.filter(pk="a").update(**change)
    with caplog.at_level(logging.ERROR, "django_ojs_unique.worker"):
        assert tick() == NOON + HOUR
    assert [record.cron_name for record in caplog.records] == ["a"]
    assert (outcome("a"), outcome("b")) == ("failed", "created")
    assert CronJob.objects.get(pk="a").next_run_at == NOON + HOUR


@pytest.mark.parametrize(
    "change", [{"expression": "never"}, {"timezone": "Mars/Olympus"}, {"overlap_policy": "x"}], ids=str
)
def test_an_entry_that_means_nothing_any_more_is_logged_once_and_has_no_next_occurrence(change, caplog):
    define()
    CronJob.objects.update(**change)
    with caplog.at_level(logging.ERROR, "django_ojs_unique.worker"):
        assert tick() is None
        assert tick() is None
    assert [record.cron_name for record in caplog.records] == ["hourly"]
    entry = CronJob.objects.get()
    assert (entry.last_outcome, entry.next_run_at, entry.enabled) == ("failed", None, True)


def test_a_type_without_a_handler_fails_where_handlers_are_required(settings):
    define()
    settings.OJS_UNIQUE = {"REQUIRE_HANDLER": True}
    tick()
    assert outcome() == "failed"


# Enabled again


def by_update(entries):
    entries.update(enabled=True)


def by_save(entries):
    entry = entries.get()
    entry.enabled = True
    entry.save()


def by_save_of_a_field(entries):
    entry = entries.get()
    entry.enabled = True
    entry.save(update_fields=["enabled"])


def by_switch(entries):
    entries.get().switch(True)


@pytest.mark.parametrize("enable", [by_update, by_save, by_save_of_a_field, by_switch])
def test_what_an_entry_missed_while_it_was_disabled_is_not_made_up_for(enable):
    define(due=NOON - DAY)
    define("other", due=NOON - DAY)
    entries = CronJob.objects.filter(name="hourly")
    entries.update(enabled=False)
    enable(entries)
    tick()
    assert (outcome(), outcome("other")) == ("", "created")
    assert CronJob.objects.get(name="hourly").next_run_at > timezone.now()


def test_an_update_that_enables_what_is_enabled_leaves_its_occurrence():
    define(due=NOON - DAY)
    assert CronJob.objects.update(enabled=True, description="new") == 1
    CronJob.objects.get().save()
    tick()
    assert (outcome(), CronJob.objects.get().description) == ("created", "new")


# Several databases


@pytest.mark.django_db(databases=["default", "other"])
def test_one_database_owns_an_entry_of_code(handlers):
    job("here", cron="0 * * * *")(lambda: None)
    job("there", cron=Cron("0 * * * *", using="other"))(lambda: None)
    registry.register(Definition("healed", print, heal=Every("PT1H")))
    for using in ("default", "other"):
        cron.sync(using, NOON)
        CronJob.objects.using(using).define("by-hand", "0 * * * *", "t")
        CronJob.objects.using(using).update(next_run_at=NOON + HOUR)
        assert cron.is_at_rest(using, NOON)
        cron.tick(using, NOON + HOUR)
    jobs = {using: set(Job.objects.using(using).values_list("type", flat=True)) for using in ("default", "other")}
    assert jobs == {"default": {"here", "ojs.heal", "t"}, "other": {"there", "t"}}


@pytest.mark.django_db(databases=["default", "other"])
def test_a_row_from_before_does_not_fire_in_another_database(handlers):
    job("here", cron="0 * * * *")(lambda: None)
    sync()
    (entry,) = CronJob.objects.all()
    entry.save(using="other", force_insert=True)
    assert cron.tick("other", NOON + HOUR) is None
    assert cron.is_at_rest("other", NOON + HOUR)
    assert not Job.objects.using("other").exists()


def test_a_database_of_an_entry_is_an_alias():
    with pytest.raises(InvalidRequest, match="using"):
        Cron("@daily", using=1)


# Declared in code


def test_what_handlers_declare_becomes_an_entry_in_the_projects_time_zone(handlers):
    @job("report.daily", cron=Cron("0 9 * * *", args={"n": 1}, overlap_policy="allow"), queue="reports")
    def report(n):
        """Do nothing."""

    sync()
    entry = CronJob.objects.get()
    assert (entry.name, entry.type, entry.args, entry.options) == ("report.daily", "report.daily", {"n": 1}, {})
    assert (entry.expression, entry.timezone, entry.overlap_policy) == ("0 9 * * *", "Europe/Berlin", "allow")
    assert (entry.declared, entry.enabled, entry.next_run_at) == (True, True, NOON + 20 * HOUR)
    tick(NOON + 20 * HOUR)
    assert Job.objects.get().queue == "reports"


def test_a_string_is_enough(handlers):
    job("report_all", cron="@hourly")(lambda: None)
    sync()
    assert tick() == NOON + HOUR


def test_a_zone_given_in_code_is_taken(handlers):
    job("t.utc", cron=Cron("0 9 * * *", "UTC"))(lambda: None)
    sync()
    assert CronJob.objects.get().next_run_at == NOON + 21 * HOUR


def test_a_self_healing_scan_becomes_an_entry(handlers):
    registry.register(Definition("order.settle", lambda: None, declared({"queue": "orders"}), heal=Every("PT5M")))
    registry.register(Definition("order.close", lambda: None, heal=Every("PT1H"), cron=Cron("@daily")))
    sync()
    assert sorted(CronJob.objects.values_list("name", "type", "expression")) == [
        ("heal.order.close", "ojs.heal", "@every PT1H"),
        ("heal.order.settle", "ojs.heal", "@every PT5M"),
        ("order.close", "order.close", "@daily"),
    ]
    entry = CronJob.objects.get(pk="heal.order.settle")
    assert (entry.args, entry.options, entry.overlap_policy, entry.declared) == (
        {"type": "order.settle"},
        {"queue": "orders"},
        "skip",
        True,
    )


def test_what_did_not_change_is_not_written_again(handlers):
    job("t.a", cron="@hourly")(lambda: None)
    sync()
    with CaptureQueriesContext(connection) as queries:
        sync(NOON + 90 * MINUTE)
    assert len(queries) == 1
    assert CronJob.objects.get().next_run_at == NOON + HOUR


def test_new_times_are_counted_from_now_and_other_changes_leave_the_next_occurrence(handlers):
    job("t.a", cron=Cron("@hourly", args={"n": 1}))(redeclared)
    sync()
    job("t.a", cron=Cron("@hourly", args={"n": 2}))(redeclared)
    sync(NOON + 90 * MINUTE)
    entry = CronJob.objects.get()
    assert (entry.args, entry.next_run_at) == ({"n": 2}, NOON + HOUR)
    job("t.a", cron=Cron("30 * * * *", args={"n": 2}))(redeclared)
    sync(NOON + 90 * MINUTE)
    assert CronJob.objects.get().next_run_at == NOON + 150 * MINUTE


def redeclared(n):
    """Do nothing."""


def test_an_entry_that_was_switched_off_stays_off(handlers):
    job("t.a", cron="@hourly")(lambda: None)
    sync()
    CronJob.objects.update(enabled=False)
    job("t.b", cron="@daily")(lambda: None)
    sync()
    assert not CronJob.objects.get(pk="t.a").enabled


def test_an_entry_that_this_program_does_not_declare_is_left_to_others(handlers):
    job("t.a", cron="@hourly")(lambda: None)
    sync()
    registry.unregister("t.a")
    assert tick(NOON + DAY) is None
    assert not Job.objects.exists()


@pytest.mark.slow
def test_an_entry_that_never_fires_in_the_projects_zone_is_logged_and_stops_no_other(handlers, caplog):
    job("t.a", cron="30 2 * 3 7L")(lambda: None)
    registry.register(Definition("t.b", lambda: None, heal=Every("PT0.5S")))
    job("t.c", cron="@hourly")(lambda: None)
    sync()
    assert [record.cron_name for record in caplog.records] == ["t.a", "t.b"]
    assert CronJob.objects.get().name == "t.c"


def test_code_takes_over_an_entry_of_the_same_name(handlers):
    define("t.a", "0 0 * * *", "other")
    job("t.a", cron="@hourly")(lambda: None)
    sync()
    entry = CronJob.objects.get()
    assert (entry.declared, entry.type, entry.next_run_at) == (True, "t.a", NOON + HOUR)


# Defined in the database


def test_an_entry_can_be_defined_and_changed():
    entry = CronJob.objects.define(
        "nightly",
        "30 2 * * *",
        "report.nightly",
        timezone="Europe/Berlin",
        overlap_policy="cancel",
        description="d",
        retry=RetryPolicy(max_attempts=5),
        unique=UniquePolicy(),
    )
    entry.refresh_from_db()
    assert (entry.overlap_policy, entry.description, entry.declared) == ("cancel_previous", "d", False)
    assert (entry.options["retry"]["max_attempts"], entry.next_run_at) == (5, entry.cron.next_after(entry.created_at))
    changed = CronJob.objects.define("nightly", "@hourly", "report.hourly", [1], enabled=False)
    assert CronJob.objects.get() == changed
    assert (changed.type, changed.args, changed.options, changed.enabled) == ("report.hourly", [1], {}, False)
    assert (changed.timezone, changed.created_at) == ("UTC", entry.created_at)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "Nightly"}, "name"),
        ({"name": "night_ly"}, "name"),
        ({"name": "-a"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "a" * 256}, "name"),
        ({"name": 5}, "name"),
        ({"expression": "0 0 31 2 *"}, "expression"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": ""}, "timezone"),
        ({"overlap_policy": "queue"}, "overlap_policy"),
        ({"type": "No Type"}, "type"),
        ({"args": 5}, "args"),
        ({"args": {"a": NOON}}, "args.a"),
        ({"queue": "No Queue"}, "queue"),
        ({"colour": "red"}, "options.colour"),
        ({"scheduled_at": "2026-01-01T00:00:00Z"}, "options.scheduled_at"),
        ({"timeout": NOON}, "options.timeout"),
        ({"meta": "text"}, "meta"),
        ({"enabled": "yes"}, "enabled"),
        ({"description": None}, "description"),
        ({"description": "a\0b"}, "description"),
    ],
    ids=str,
)
def test_an_invalid_definition_is_refused_by_the_name_of_the_field(change, field):
    arguments = {"name": "nightly", "expression": "@daily", "type": "t", **change}
    with pytest.raises(InvalidRequest) as refusal:
        CronJob.objects.define(**arguments)
    assert refusal.value.details["field"] == field
    assert not CronJob.objects.exists()


def test_an_invalid_unique_policy_is_refused():
    with pytest.raises(InvalidPolicy):
        CronJob.objects.define("nightly", "@daily", "t", unique={"keys": ["nothing"]})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"expression": "* * *"}, "expression"),
        ({"timezone": "CET+1"}, "timezone"),
        ({"type": "No Type"}, "type"),
        ({"name": "Nightly"}, "name"),
        ({"args": 5}, "args"),
        ({"options": {"priority": 1000}}, "options"),
        ({"options": {"colour": "red"}}, "options"),
    ],
    ids=str,
)
def test_a_form_shows_what_is_wrong_at_its_field(change, field):
    entry = CronJob(**{"name": "nightly", "expression": "@daily", "type": "t", **change})
    with pytest.raises(ValidationError) as refusal:
        entry.full_clean()
    assert list(refusal.value.message_dict) == [field]


def test_a_form_that_changes_the_times_counts_the_next_occurrence_anew():
    define(due=NOON)
    entry = CronJob.objects.get()
    entry.full_clean()
    assert entry.next_run_at == NOON
    entry.expression = "@daily"
    entry.full_clean()
    assert entry.next_run_at > NOON


def test_a_declared_entry_may_have_the_name_of_any_type(handlers):
    job("report_all", cron="@hourly")(lambda: None)
    sync()
    CronJob.objects.get().full_clean()


# Many workers


@pytest.mark.slow
def test_of_ten_workers_that_tick_at_once_one_fires_each_occurrence(start):
    rounds = 10
    define("hourly", overlap_policy="allow")
    define("unique", unique={}, overlap_policy="allow")

    def at(number):
        cron.tick("default", NOON + number * HOUR)

    together([at] * 10, rounds=rounds)
    assert Job.objects.filter(fingerprint=None).count() == rounds
    assert CronJob.objects.get(pk="hourly").run_count == rounds
    assert Job.objects.exclude(fingerprint=None).count() == 1
    assert outcome("unique") == "rejected"


@pytest.mark.slow
def test_workers_whose_clocks_differ_fire_each_occurrence_once(start):
    define(overlap_policy="allow")

    def at(worker, number):
        cron.tick("default", NOON + number * HOUR + worker * timedelta(milliseconds=1))

    together([partial(at, worker) for worker in range(10)], rounds=5)
    assert Job.objects.count() == 5


@pytest.mark.slow
def test_a_job_that_finishes_while_it_is_cancelled_is_no_obstacle(start):
    define(overlap_policy="cancel_previous")

    def at(number):
        cron.tick("default", NOON + number * HOUR)

    def finish(number):
        Job._base_manager.filter(state="available").update(state="completed", finished_at=NOON)

    together([at, at, finish, finish], rounds=10)
    assert Job.objects.count() == 10
    assert Job.objects.exclude(state__in=["completed", "cancelled"]).count() <= 1


@pytest.mark.slow
def test_ten_workers_that_start_at_once_declare_each_entry_once(start, handlers):
    for number in range(20):
        job(f"t.n{number}", cron="@hourly")(lambda: None)

    def declare(number):
        minute = number % 60
        for definition in registry.definitions():
            if definition.cron is not None:
                registry.unregister(definition.type)
                job(definition.type, cron=f"{minute} * * * *")(definition.function)
        cron.sync("default", NOON)

    together([declare] * 10, rounds=5)
    assert CronJob.objects.filter(expression="4 * * * *", next_run_at=NOON + 4 * MINUTE).count() == 20


@pytest.mark.slow
def test_an_entry_can_be_defined_by_many_at_once(start):
    def define_it(number):
        CronJob.objects.define(f"nightly-{number}", "@daily", "t")

    together([define_it] * 8, rounds=5)
    assert CronJob.objects.count() == 5


def _fire_and_wait(parent):
    with transaction.atomic():
        cron.tick("default", NOON)
        parent.tell("fired")
        parent.hear()


def firing(start):
    """Define an entry; return the process that has fired it and holds its lock until it is told to go on."""
    define()
    child = start(_fire_and_wait)
    assert child.hear() == "fired"
    return child


@pytest.mark.slow
def test_an_entry_whose_worker_dies_while_it_fires_is_fired_by_the_next(start):
    child = firing(start)
    child.kill()
    CronJob.objects.filter(pk="hourly").update(description="the lock is free again")
    tick()
    assert (Job.objects.count(), outcome()) == (1, "created")


def test_an_entry_that_another_worker_is_firing_is_passed_over(start):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    child = firing(start)
    assert tick() is None
    child.tell("go on")
    child.result()
    assert Job.objects.count() == 1


def test_a_duplicate_that_an_entry_meets_does_not_break_the_callers_transaction():
    Job.objects.enqueue("t", unique={})
    define(unique={})
    with transaction.atomic():
        tick()
        with pytest.raises(DuplicateJob):
            Job.objects.enqueue("t", unique={})
    assert outcome() == "rejected"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_declares_the_scan_of_a_healed_type_and_runs_it(handlers):
    """From the declaration to the record's job, without a hand."""
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    healed = []

    @job(
        "user.welcome",
        queue="users",
        unique={"keys": ["type", "args"], "on_conflict": "ignore"},
        heal=Heal(every="PT1S", pending=users.filter(is_active=True), args={"user_id": "pk"}),
    )
    def welcome(user_id):
        healed.append(user_id)
        users.filter(pk=user_id).update(is_active=False)
        worker.stop()

    user = users.create(username="waiting")
    worker = Worker()
    worker.run()
    assert healed == [user.pk]
    scan = Job.objects.get(type="ojs.heal", state="completed")
    assert (scan.queue, scan.result) == ("users", {"created": 1, "refused": 0, "invalid": 0})


# Run now


def run(name="hourly", now=NOON):
    return cron.run_now(name, now, "default")


DAILY = {"expression": "@daily", "overlap_policy": "allow", "args": {"n": 1}}
MIDNIGHT = NOON.replace(hour=0)


@pytest.mark.parametrize("late", [timedelta(0), timedelta(milliseconds=300), timedelta(hours=5)])
@pytest.mark.parametrize("clock", [timedelta(0), timedelta(seconds=-2), timedelta(hours=-7), timedelta(hours=7)])
@pytest.mark.parametrize("window", [presets.once_per_window("P1D"), presets.throttle("P1D")], ids=["fixed", "rolling"])
def test_the_job_of_each_day_is_judged_at_its_occurrence(set_clock, window, late, clock):
    """However late it is, and whatever the clock of the worker's host is."""
    define(**DAILY, due=MIDNIGHT, unique=window)
    for day in range(3):
        now = MIDNIGHT + day * DAY + (late if day != 1 else timedelta(0))
        set_clock(now + clock)
        tick(now)
        assert outcome() == "created"
        finalized(Job.objects.latest("created_at"))
    days = [MIDNIGHT + day * DAY for day in range(3)]
    assert list(Job.objects.order_by("created_at").values_list("created_at", flat=True)) == days


def test_an_entry_shares_its_window_with_other_entries_and_callers(set_clock):
    policy = presets.once_per_window("P1D")
    for name in ("a", "b"):
        define(name, **DAILY, due=MIDNIGHT, unique=policy)
    set_clock(MIDNIGHT - timedelta(seconds=2))
    tick(MIDNIGHT)
    assert {outcome("a"), outcome("b")} == {"created", "deduplicated"}
    set_clock(MIDNIGHT + 5 * HOUR)
    assert Job.objects.enqueue("t", {"n": 1}, unique=policy).deduplicated


def test_a_job_that_expired_since_the_occurrence_is_no_duplicate_of_a_late_one(set_clock):
    set_clock(MIDNIGHT - HOUR)
    policy = presets.throttle("P1D")
    Job.objects.enqueue("t", {"n": 1}, unique=policy, expires_at=MIDNIGHT + HOUR)
    define(**DAILY, due=MIDNIGHT, unique=policy)
    set_clock(MIDNIGHT + 5 * HOUR)
    tick(MIDNIGHT + 5 * HOUR)
    assert outcome() == "created"


def test_a_late_occurrence_is_not_dated_back_but_for_its_uniqueness(set_clock):
    replacing = {"keys": ["type"], "on_conflict": "replace"}
    old = Job.objects.enqueue("t", unique=replacing).job
    define(due=NOON, unique=replacing, overlap_policy="allow")
    now = NOON + HOUR - MINUTE
    set_clock(now)
    tick(now)
    old.refresh_from_db()
    fired = old.replaced_by
    assert (fired.created_at, fired.enqueued_at, old.finished_at) == (NOON, now, now)


def test_a_job_that_is_run_manually_is_judged_now(set_clock):
    define(**DAILY, due=MIDNIGHT + DAY, unique=presets.once_per_window("P1D"))
    now = MIDNIGHT + 23 * HOUR
    set_clock(now)
    run(now=now)
    assert (outcome(), Job.objects.get().created_at) == ("created", now)
    finalized(Job.objects.get())
    tick(MIDNIGHT + DAY)
    assert (outcome(), Job.objects.count()) == ("created", 2)


def test_an_hour_that_the_clocks_repeat_and_one_that_they_skip(set_clock):
    """Fixed windows are those of UTC, so that each occurrence of a local hour has its own."""
    define(
        expression="0 * * * *", timezone="Europe/Berlin", overlap_policy="allow", unique=presets.once_per_window(3600)
    )
    for start in (datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)):
        for hour in range(5):
            now = start + hour * HOUR
            CronJob.objects.update(next_run_at=now)
            set_clock(now - timedelta(seconds=2))
            tick(now)
            assert outcome() == "created"
            Job._base_manager.filter(state="available").update(state="completed", finished_at=now)


@pytest.fixture
def set_clock(monkeypatch):
    """Set the clock of the host."""
    return lambda at: monkeypatch.setattr("django.utils.timezone.now", lambda: at)


def test_an_entry_is_run_now_and_its_next_occurrence_stays():
    define(due=NOON + HOUR, enabled=False, args={"x": 1})
    outcome, id = run()
    made = Job.objects.get()
    assert (outcome, id, made.type, made.args, made.meta["cron_name"]) == ("created", made.pk, "t", {"x": 1}, "hourly")
    entry = CronJob.objects.get()
    assert (entry.last_outcome, entry.last_run_at, entry.last_job_id, entry.run_count) == ("created", NOON, made.pk, 1)
    assert entry.next_run_at == NOON + HOUR


def test_a_manual_run_is_held_by_the_overlap_policy_and_tells_which_job_is_in_the_way():
    define()
    tick()
    (first,) = Job.objects.all()
    assert run(now=NOON + MINUTE) == ("skipped", first.pk)
    assert CronJob.objects.get().run_count == 1


@pytest.mark.parametrize(
    ("on_conflict", "became"), [("reject", "rejected"), ("ignore", "deduplicated"), ("replace", "replaced")]
)
def test_a_manual_run_is_held_by_the_unique_policy(on_conflict, became):
    first = Job.objects.enqueue("t", unique={}).job
    define(unique={"on_conflict": on_conflict})
    outcome, id = run()
    assert (outcome, id == first.pk) == (became, became != "replaced")


def test_what_cannot_be_run_manually_is_told_and_changes_nothing():
    assert run("nothing") is None
    define()
    before = CronJob.objects.values().get()
    for change in ({"options": {"priority": 1000}}, {"expression": "nonsense"}):
        CronJob.objects.update(**change)
        with pytest.raises(InvalidRequest):
            run()
        CronJob.objects.update(options=before["options"])
    assert CronJob.objects.values().get() == {**before, "expression": "nonsense"}
    assert cron.past_job_ids(CronJob.objects.get(), NOON, 5) == []


def test_the_jobs_of_past_occurrences_are_found_by_their_ids():
    entry = define()
    CronJob.objects.update(created_at=NOON - DAY)
    entry.refresh_from_db()
    tick()
    (first,) = Job.objects.all()
    assert cron.past_job_ids(entry, NOON + MINUTE, 3) == [
        first.pk,
        cron.job_id("hourly", NOON - HOUR),
        cron.job_id("hourly", NOON - 2 * HOUR),
    ]
    assert len(cron.past_job_ids(entry, NOON, 99)) == 24
