"""``manage.py jobs``: what it says, what it refuses, and with which exit code."""

import io
import os
import subprocess
import sys
from datetime import timedelta
from signal import SIGPIPE
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Count
from django.utils import timezone

from django_ojs_unique import UniquePolicy, job
from django_ojs_unique.management.jobs import SUBCOMMANDS, change_jobs, show_system
from django_ojs_unique.management.jobs.tables import table
from django_ojs_unique.models import CronJob, Event, Job, Queue, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.reporting import bounded
from django_ojs_unique.reporting import workers as report
from django_ojs_unique.reporting.text import age, harmless
from django_ojs_unique.reporting.unclaimed import Unknown
from django_ojs_unique.signals import job_cancelled
from tests.support.rows import insert

pytestmark = pytest.mark.django_db


class Terminal(io.StringIO):
    def isatty(self):
        return True


def jobs(*arguments, out=None, **options):
    out = out or io.StringIO()
    call_command("jobs", *arguments, stdout=out, stderr=out, **options)
    return out.getvalue()


def refused(*arguments):
    """Return what a refused command says: the lines, and the error."""
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        jobs(*arguments, out=out)
    return f"{out.getvalue()}{error.value}"


def separately(*arguments):
    """Return what a command says, and what it says on the standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command("jobs", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def a_job(type="email.send", **options):
    return Job.objects.enqueue(type, **options).job


def discarded(**options):
    job = a_job(**options)
    Job._base_manager.filter(pk=job.pk).update(state="discarded", finished_at=timezone.now(), unique_states=frozenset())
    job.refresh_from_db()
    return job


@pytest.fixture
def cancelled():
    """The jobs of which `job_cancelled` tells."""
    heard = []

    def receiver(job, **kwargs):
        heard.append(job)

    job_cancelled.connect(receiver)
    yield heard
    job_cancelled.disconnect(receiver)


# list


def test_a_list_begins_with_the_newest():
    old, new = a_job(), a_job()
    heading, first, second = jobs("list").splitlines()
    assert heading.split("  ")[0] == "id"
    assert heading.split()[1:] == ["state", "tries", "age", "queue", "type", "args", "key", "last", "error"]
    assert first.startswith(str(new.pk))
    assert second.startswith(str(old.pk))


def test_a_list_shows_the_newest_first_also_where_callers_choose_ids():
    ids = [UUID(int=number) for number in (3, 1, 2)]
    for id in ids:
        a_job(id=id)
    assert [line.split()[0] for line in jobs("list").splitlines()[1:]] == [str(id) for id in reversed(ids)]
    assert jobs("list", "--limit", "1").splitlines()[1].startswith(str(max(ids)))  # it goes by the ids, and sorts then


def test_jobs_of_one_moment_are_listed_by_their_ids():
    ids = [UUID(int=number) for number in (2, 3, 1)]
    for id in ids:
        a_job(id=id)
    Job.objects.update(created_at=timezone.now())
    assert [line.split()[0] for line in jobs("list").splitlines()[1:]] == [str(UUID(int=n)) for n in (3, 2, 1)]


def test_filters_add_up():
    wanted = a_job(queue="emails", scheduled_at=timezone.now() + timedelta(hours=1))
    a_job(queue="emails")
    a_job(queue="emails", type="email.other", scheduled_at=timezone.now() + timedelta(hours=1))
    a_job(scheduled_at=timezone.now() + timedelta(hours=1))
    listed = jobs(
        *("list", "--state", "scheduled", "retryable", "--state", "active", "--queue", "emails", "--type", "email.send")
    )
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [str(wanted.pk)]


def test_a_list_finds_the_jobs_of_a_key():
    wanted = Job.objects.enqueue("email.send", key="order-7").job
    Job.objects.enqueue("email.send", key="order-8")
    assert jobs("list", "--key", "order-7").splitlines()[1].startswith(str(wanted.pk))


@pytest.mark.parametrize("command", ["list", "cancel", "retry"])
def test_a_key_is_met_exactly(command):
    keys = ["order", "Order", "order ", "órder"]
    for key in keys:
        job = a_job(key=key)
        if command == "retry":
            Job._base_manager.filter(pk=job.pk).update(state="discarded", finished_at=timezone.now())
    before = dict(Job.objects.values_list("key", "state"))
    said = jobs(command, "--key", "order")
    after = dict(Job.objects.values_list("key", "state"))
    if command == "list":
        assert len(said.splitlines()) == 2
    else:
        assert [key for key in keys if before[key] != after[key]] == ["order"]


def test_a_dry_run_of_a_retry_does_not_promise_what_would_be_refused():
    a_job(type="t")
    chosen = ("retry", "--type", "t", "--state", "available", "completed")
    assert "1 job (1 available) match and cannot be retried" in jobs(*chosen, "--dry-run")
    assert "Retried: 0 jobs" in jobs(*chosen)


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("command", ["cancel", "retry", "release"])
def test_the_named_database_counts_whatever_a_router_says(settings, command):
    settings.DATABASE_ROUTERS = ["tests.support.routers.JobsOnOther"]
    id, later = uuid4(), timezone.now() + timedelta(hours=1)
    for using in ("default", "other"):
        Job.objects.using(using).enqueue("t", id=id, scheduled_at=later, unique=UniquePolicy(keys=["type"]))

    def columns(using):
        return Job.objects.using(using).values_list("state", "fingerprint").get()

    before = columns("other")
    jobs(command, str(id), "--database", "default")
    assert columns("other") == before != columns("default")


def test_a_list_whose_filter_no_index_knows_looks_at_the_newest_jobs_and_leads_to_the_others(monkeypatch):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 2)
    first, *others = (a_job(type) for type in ("a", "b", "b", "b"))
    listed, warned = separately("list", "--type", "a")
    assert (listed, f"--older-than {others[1].pk}" in warned) == ("", True)
    listed, warned = separately("list", "--type", "a", "--older-than", str(others[1].pk))
    assert (listed.splitlines()[1].startswith(str(first.pk)), warned) == (True, "")


def test_a_list_looks_at_the_newest_jobs_also_if_an_index_finds_too_many(monkeypatch):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 2)
    monkeypatch.setattr(bounded, "MOST_COUNTED", 1)
    old = [discarded() for _ in range(2)]
    a_job(), a_job()
    listed, warned = separately("list", "--state", "discarded")
    assert (listed, "--older-than" in warned) == ("", True)
    Job.objects.filter(pk=old[0].pk).delete()
    listed, warned = separately("list", "--state", "discarded")
    assert (listed.splitlines()[1].startswith(str(old[1].pk)), warned) == (True, "")


def test_a_list_that_is_cut_says_how_to_see_more():
    for _ in range(3):
        a_job()
    listed = jobs("list", "--limit", "2")
    assert len(listed.splitlines()) == 4
    assert "--limit 10" in listed


def test_an_empty_list_says_whether_the_table_or_the_filter_is_why():
    assert "There are no jobs in database 'default'" in jobs("list")
    a_job()
    assert "No job matches" in jobs("list", "--state", "discarded")


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_on_a_terminal_a_list_fits_its_width(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    job = a_job("t" * 200, queue="q" * 100)
    lines = jobs("list", out=Terminal(), no_color=True).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert str(job.pk) in lines[1]


def test_a_list_tells_jobs_apart_by_args_key_and_last_error():
    job = a_job(args={"id": 5, "xxx": "ü"}, unique=UniquePolicy(keys=["type", "args"], args_keys=["id"]))
    Job._base_manager.filter(pk=job.pk).update(
        errors=[{"type": "OSError", "message": "old"}, {"type": "E", "message": "\x1b[1m"}]
    )
    (line,) = jobs("list").splitlines()[1:]
    assert line.endswith('id=5, xxx="ü"  type + args.id=5  E: \\x1b[1m')


def test_on_a_narrow_terminal_a_second_line_tells_jobs_apart(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    a_job(args={"text": "t" * 200}, key="order-7")
    a_job()
    lines = jobs("list", out=Terminal(), no_color=True).splitlines()
    assert lines[3].startswith('    args: text="ttt')
    assert max(map(len, lines)) == 80
    assert len(lines) == 4  # a job of which there is nothing to tell has one line
    monkeypatch.setenv("COLUMNS", "300")
    assert "key order-7" in jobs("list", out=Terminal(), no_color=True).splitlines()[2]


def test_into_a_file_nothing_is_shortened():
    a_job("t" * 200, queue="q" * 100)
    assert "t" * 200 in jobs("list")


# show


def test_show_tells_everything_about_a_job():
    job = a_job(args={"user_id": 42}, meta={"trace": "ü1"}, queue="emails", unique=UniquePolicy(on_conflict="ignore"))
    a_job(unique=UniquePolicy(on_conflict="ignore"))
    shown = jobs("show", str(job.pk))
    for part in [
        str(job.pk),
        "available",
        "emails",
        '{"user_id": 42}',
        "ü1",
        job.fingerprint,
        "0 of 3",
        "1 enqueue",
    ]:
        assert part in shown
    assert "finished" not in shown


def test_show_tells_the_key_of_a_job_and_how_often_it_was_rewritten():
    for number in range(3):
        job = a_job(args=[number], key="inbox")
    shown = jobs("show", str(job.pk))
    for line in ("key               inbox", "rewritten         2 times", "args              [0, 1, 2]"):
        assert line in shown


def test_show_tells_who_runs_a_job_and_that_nobody_takes_it(handlers):
    job("letter.count")(lambda: None)
    a_worker("h:1:a", ["letter"])
    known, stranger = a_job("letter.count", queue="letter"), a_job("letter.cuont", queue="letters")
    shown = jobs("show", str(known.pk))
    assert "  handler           tests.management.test_jobs_command.test_show_tells" in shown
    assert "taken by nobody" not in shown
    shown = jobs("show", str(stranger.pk))
    assert "No handler is registered here for 'letter.cuont'" in shown
    assert "Did you mean 'letter.count'?" in shown
    assert "  taken by nobody   No running worker says that it takes letters." in shown
    Job._base_manager.update(state="completed", finished_at=timezone.now())
    assert "taken by nobody" not in jobs("show", str(stranger.pk))


def test_show_prints_each_error_with_its_traceback_and_nothing_that_moves_the_cursor():
    evil = "\x1b[2J\x9b31mgone\r\u202eevil\x07"
    trace = f"Traceback:\n\tline one {evil}\nValueError: {evil}\n"
    errors = [
        {"type": "ValueError", "message": evil, "attempt": 1, "occurred_at": "now", "details": {"traceback": trace}},
        {"type": "visibility_timeout", "message": "Lease expired."},
        "no record at all\x1b[2J",
    ]
    job = a_job(args={"text": evil})
    Job.objects.filter(pk=job.pk).update(errors=errors, progress=0.5, progress_note=evil)
    shown = jobs("show", str(job.pk))
    assert all(line.isprintable() for line in shown.splitlines())
    assert "\\x1b[2J" in shown
    assert "  ValueError: " in shown
    assert "Lease expired." in shown
    assert "no record at all" in shown


# cancel, retry


def test_cancelling_goes_on_after_a_refusal_and_then_fails():
    waiting, finished, unknown = a_job(), discarded(), uuid4()
    said = refused("cancel", str(finished.pk), str(unknown), str(waiting.pk), str(waiting.pk))
    assert f"Cannot cancel job {finished.pk}: it is discarded." in said
    assert f"There is no job {unknown}" in said
    assert f"Cancelled {waiting.pk}." in said
    assert "2 of 3 refused." in said
    waiting.refresh_from_db()
    assert waiting.state == "cancelled"


def test_retrying_makes_waiting_and_discarded_jobs_available():
    later, dead = a_job(scheduled_at=timezone.now() + timedelta(hours=1)), discarded()
    said = jobs("retry", str(later.pk), str(dead.pk))
    assert said == f"Retried {later.pk}.\nRetried {dead.pk}.\n"
    assert set(Job.objects.values_list("state", flat=True)) == {"available"}


@pytest.mark.django_db(transaction=True)
def test_a_retry_that_would_duplicate_a_live_job_names_it_unless_forced():
    dead = discarded(unique=UniquePolicy())
    live = a_job(unique=UniquePolicy())
    said = refused("retry", str(dead.pk))
    assert f"job {live.pk} is a live duplicate (available)" in said
    assert "--force" in said
    assert "1 of 1 refused." in said
    assert jobs("retry", "--force", str(dead.pk)) == f"Retried {dead.pk}.\n"


def test_a_cancelled_job_is_retried_only_if_it_or_its_state_is_named():
    job = a_job()
    job.cancel()
    assert "add --state cancelled." in separately("retry", "--type", "email.send")[1]
    assert jobs("retry", str(job.pk)) == f"Retried {job.pk}.\n"
    job.cancel()
    assert jobs("retry", "--state", "cancelled") == "Retried: 1 job.\n"


@pytest.mark.django_db(transaction=True)
def test_finished_jobs_are_retried_and_waiting_ones_are_left():
    tomorrow = timezone.now() + timedelta(days=1)
    dead, later, waiting = discarded(), a_job("email.later", scheduled_at=tomorrow), a_job("email.wait")
    later.cancel()
    said = refused("retry", str(dead.pk), str(later.pk), str(waiting.pk))
    assert f"Retried {dead.pk}." in said
    assert f"Cannot retry job {waiting.pk}: it is available." in said
    assert "1 of 3 refused." in said
    assert dict(Job.objects.values_list("type", "state")) == {
        "email.send": "available",
        "email.later": "scheduled",
        "email.wait": "available",
    }


def test_a_retry_by_filters_takes_discarded_jobs_unless_a_state_is_named():
    cancelled_job, waiting, _ = a_job(), a_job(scheduled_at=timezone.now() + timedelta(days=1)), discarded()
    cancelled_job.cancel()
    assert jobs("retry", "--type", "email.send") == "Retried: 1 job.\n"
    assert jobs("retry", "--type", "email.send", "--state", "cancelled") == "Retried: 1 job.\n"
    waiting.refresh_from_db()
    assert waiting.state == "scheduled"
    assert jobs("retry", "--type", "email.send", "--state", "scheduled") == "Retried: 1 job.\n"


@pytest.mark.django_db(transaction=True)
def test_a_retry_beside_a_live_job_needs_force_and_a_dry_run_says_so():
    dead, live = discarded(unique=UniquePolicy()), a_job(unique=UniquePolicy())
    later = a_job("email.later", scheduled_at=timezone.now() + timedelta(days=1))
    assert jobs("retry", "--dry-run", str(dead.pk), str(later.pk)).splitlines() == [
        f"{dead.pk}: Nothing would be done. A live duplicate exists: {live.pk} (available)",
        f"{later.pk}: It becomes available now.",
        "Nothing was changed.",
    ]
    assert f"job {live.pk} is a live duplicate (available)" in refused("retry", str(dead.pk))
    assert "It would run beside a live duplicate:" in jobs("retry", "--dry-run", "--force", str(dead.pk))
    assert jobs("retry", "--force", str(dead.pk)) == f"Retried {dead.pk}.\n"


def test_a_dry_run_says_what_would_become_of_each_job_that_is_named():
    dead, live, unknown = discarded(unique=UniquePolicy()), a_job(unique=UniquePolicy()), uuid4()
    said = jobs("retry", "--dry-run", str(dead.pk), str(unknown)).splitlines()
    assert said == [
        f"{dead.pk}: Nothing would be done. A live duplicate exists: {live.pk} (available)",
        f"{unknown}: Nothing would be done. It is gone: deleted or pruned.",
        "Nothing was changed.",
    ]
    said = jobs("enqueue-again", "--dry-run", str(dead.pk))
    assert said.startswith(f"{dead.pk}: Nothing would be done. Nothing is enqueued: job {live.pk} is available, and")
    assert "is admitted, although" in jobs("release", "--dry-run", str(live.pk))
    assert jobs("cancel", "--dry-run", str(dead.pk), str(live.pk)).splitlines() == [
        f"{dead.pk}: Nothing would be done. It is discarded: it has finished.",
        f"{live.pk}: It is available, and is cancelled.",
        "Nothing was changed.",
    ]
    assert "It would run beside a live duplicate:" in jobs("retry", "--dry-run", "--force", str(dead.pk))
    later = a_job("email.later", scheduled_at=timezone.now() + timedelta(hours=1))
    assert "It becomes available now." in jobs("retry", "--dry-run", str(later.pk))
    later.cancel()
    assert set(Job.objects.values_list("state", flat=True)) == {"discarded", "available", "cancelled"}


def test_a_replaced_job_cannot_be_retried_and_a_dry_run_counts_none():
    old = a_job(unique=UniquePolicy())
    Job.objects.enqueue("email.send", unique=UniquePolicy(on_conflict="replace"))
    said = separately("retry", "--state", "cancelled", "--dry-run")
    assert "unless they were replaced or pruned" in " ".join(said)
    assert "would be" not in said[0]
    assert "it is cancelled, and was replaced by job" in refused("retry", str(old.pk))


def test_finished_jobs_are_enqueued_again():
    dead = discarded(unique=UniquePolicy())
    (line,) = jobs("enqueue-again", str(dead.pk)).splitlines()
    new = Job.objects.exclude(pk=dead.pk).get()
    assert line == f"Enqueued again {dead.pk} as {new.pk}."
    assert f"job {new.pk} is a duplicate (available)" in refused("enqueue-again", str(dead.pk))
    assert f"Cannot enqueue job {new.pk} again: it is available." in refused("enqueue-again", str(new.pk))
    new.cancel()
    assert jobs("enqueue-again", "--type", "email.send", "--state", "discarded") == "Enqueued again: 1 job.\n"


def test_what_is_available_cannot_be_retried():
    job = a_job()
    assert f"Cannot retry job {job.pk}: it is available." in refused("retry", str(job.pk))


def test_a_job_that_is_released_goes_on_and_frees_its_key():
    held = a_job(unique=UniquePolicy())
    assert jobs("release", str(held.pk)) == f"Taken out of uniqueness {held.pk}.\n"
    assert Job.objects.enqueue("email.send", unique=UniquePolicy()).created
    held.refresh_from_db()
    assert held.state == "available"
    assert f"Job {held.pk} takes no part in uniqueness." in refused("release", str(held.pk))


def test_the_job_that_holds_a_key_is_removed_and_a_running_one_goes_on():
    waiting, running = a_job(key="k"), a_job("page.index", key="k")
    Job._base_manager.filter(pk=running.pk).update(state="active")
    assert "is held by 2 jobs" in refused("remove", "k")
    assert jobs("remove", "k", "--type", "email.send", "--key-scope", "type") == f"Deleted {waiting.pk}.\n"
    assert jobs("remove", "k") == f"Runs to its end, and not again: {running.pk}.\n"
    assert [job.pk for job in Job.objects.all()] == [running.pk]
    assert "No job holds the key 'k'." in refused("remove", "k")


# cancel and retry by filters


def test_cancelling_by_filters_leaves_other_jobs_alone(cancelled):
    wrong = [a_job("email.wrong", queue="emails") for _ in range(3)]
    others = [a_job("email.send", queue="emails"), a_job("email.wrong", queue="other"), discarded(type="email.wrong")]
    assert jobs("cancel", "--type", "email.wrong", "--queue", "emails") == "Cancelled: 3 jobs.\n"
    assert {job.pk for job in cancelled} == {job.pk for job in wrong}
    assert all(job.state == "cancelled" and job.replaced_by_id is None for job in cancelled)
    assert set(Job.objects.exclude(state="cancelled").values_list("pk", flat=True)) == {job.pk for job in others}
    assert jobs("cancel", "--type", "email.wrong", "--queue", "emails").endswith("Cancelled: 0 jobs.\n")


def test_a_job_that_is_cancelled_by_a_filter_frees_its_key():
    a_job(unique=UniquePolicy())
    jobs("cancel", "--type", "email.send")
    assert Job.objects.enqueue("email.send", unique=UniquePolicy()).created


def test_events_tell_of_jobs_cancelled_by_filters(settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    wrong = [a_job() for _ in range(2)]
    jobs("cancel", "--state", "available")
    told = Event.objects.filter(type="job.cancelled").values_list("subject", flat=True)
    assert sorted(told) == sorted(str(job.pk) for job in wrong)


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_a_dry_run_says_which_jobs_and_changes_nothing(command):
    a_job("email.send", queue="emails")
    for _ in range(2):
        discarded(type="email.send", queue="emails")
    before = set(Job.objects.values_list("pk", "state"))
    said = jobs(command, "--queue", "emails", "--dry-run", "--limit", "1").splitlines()
    assert set(Job.objects.values_list("pk", "state")) == before
    count, state = ("1 job", "available") if command == "cancel" else ("2 jobs", "discarded")
    assert said[0].startswith(f"{count} would be ")
    assert said[0].endswith("at most 1 of them:")
    assert said[2].split() == [count.split()[0], state, "emails", "email.send"]
    assert said[-1] == "Nothing was changed."
    first, last = jobs(command, "--queue", "others", "--dry-run").splitlines()
    assert first.startswith("No job matches. Leave a filter out")
    assert last == "Nothing was changed."


@pytest.mark.parametrize(("most", "ends"), [(1, "..."), (2, "1     available  default  email.send")])
def test_a_dry_run_says_when_there_are_more_kinds_of_jobs(most, ends, monkeypatch):
    monkeypatch.setattr(change_jobs, "MOST_GROUPS", most)
    for type in ("email.other", "email.other", "email.send"):
        a_job(type)
    assert jobs("cancel", "--queue", "default", "--dry-run").splitlines()[-2].strip() == ends


def test_filters_retry_discarded_jobs_only_unless_a_state_is_named():
    later, dead = a_job(scheduled_at=timezone.now() + timedelta(hours=1)), discarded()
    assert jobs("retry", "--type", "email.send") == "Retried: 1 job.\n"
    dead.refresh_from_db()
    later.refresh_from_db()
    assert (dead.state, later.state) == ("available", "scheduled")
    assert jobs("retry", "--type", "email.send", "--state", "scheduled") == "Retried: 1 job.\n"


def test_a_retry_by_filters_goes_on_after_a_refusal_and_then_fails():
    held, free = discarded(unique=UniquePolicy()), discarded(type="email.other")
    live = a_job(unique=UniquePolicy())
    said = refused("retry", "--state", "discarded")
    assert f"Cannot retry job {held.pk}: job {live.pk} is a live duplicate" in said
    assert "Retried: 1 job." in said
    assert "1 of 2 refused." in said
    free.refresh_from_db()
    assert free.state == "available"


CHOICES = [
    (
        "retry",
        ["--type", "t"],
        {"available": 3, "completed": 1},
        ["(3 available, 1 completed) match", "cannot"],
    ),
    ("retry", ["--state", "completed"], {"completed": 3}, ["3 jobs (3 completed) match and cannot be retried"]),
    ("retry", ["--state", "available", "active"], {"available": 2, "active": 1}, ["(1 active, 2 available)", "cannot"]),
    ("retry", ["--queue", "q"], {"available": 1}, ["only scheduled, retryable, pending, discarded and cancelled jobs"]),
    ("retry", ["--key", "k"], {"completed": 1}, ["1 job (1 completed) match and cannot", "`jobs enqueue-again`"]),
    ("retry", ["--worker", "w"], {"active": 1}, ["1 job (1 active) match and cannot"]),
    ("retry", ["--type", "t"], {"cancelled": 2}, ["2 jobs (2 cancelled) match", "add --state cancelled."]),
    ("retry", ["--since", "PT1H", "--type", "t"], {"completed": 2}, ["2 jobs (2 completed) match and cannot"]),
    ("retry", ["--until", "2099-01-01T00:00"], {"completed": 2}, ["2 jobs (2 completed) match and cannot"]),
    ("retry", ["--type", "t"], {"scheduled": 2, "retryable": 1}, ["3 jobs", "add --state retryable scheduled."]),
    ("retry", ["--type", "t"], {"pending": 1, "completed": 1}, ["(1 completed)", "add --state pending."]),
    ("cancel", ["--type", "t"], {"cancelled": 2, "discarded": 1}, ["3 jobs (2 cancelled, 1 discarded)", "finished"]),
    ("enqueue-again", ["--type", "t"], {"available": 1}, ["1 job (1 available) match and have not finished"]),
    ("enqueue-again", ["--type", "t"], {"discarded": 1}, ["1 job (1 discarded) match", "add --state discarded."]),
    ("cancel", ["--state", "completed"], {"completed": 2}, ["2 jobs (2 completed) match and have finished"]),
    (
        "cancel",
        ["--dead-letter"],
        {"discarded": 1},
        ["(1 discarded) match and have finished: only unfinished"],
    ),
]


def in_all(states, **fields):
    """Make so many jobs in each state, which every filter of `CHOICES` finds."""
    for state, count in states.items():
        ended = timezone.now() if state in TERMINAL else None
        for _ in range(count):
            row = {"type": "t", "queue": "q", "key": "k", "worker_id": "w", "state": state, "finished_at": ended}
            insert(**row, dead_letter=state == "discarded", **fields)


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["done", "dry"])
@pytest.mark.parametrize(("command", "chosen", "states", "said"), CHOICES)
def test_jobs_that_match_and_are_in_no_state_for_it_are_said_and_left(command, chosen, states, said, dry_run):
    in_all(states)
    told, complained = separately(command, *chosen, *dry_run)
    for part in said:
        assert part in complained
    assert "No job matches" not in complained
    assert told == ("Nothing was changed.\n" if dry_run else "Cancelled: 0 jobs.\n" if command == "cancel" else told)
    assert dict(Job.objects.values_list("state").annotate(count=Count("*")).order_by()) == states


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_what_is_said_of_the_rest_follows_the_states_that_were_named(command):
    suiting = {"cancel": "available", "retry": "discarded"}[command]
    in_all({suiting: 1, "completed": 2})
    assert separately(command, "--type", "t", "--dry-run")[1] == ""
    complained = separately(command, "--type", "t", "--state", suiting, "completed")[1]
    assert complained.startswith("2 jobs (2 completed) match and ")
    assert Job.objects.filter(state="completed").count() == 2


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_when_no_job_matches_that_is_said_and_nothing_else(command):
    in_all({"completed": 1})
    told, complained = separately(command, "--type", "nosuch.type")
    assert complained == (
        "No job matches. Leave a filter out to match others; `jobs queues` shows the queues that have jobs.\n"
    )
    assert "0 jobs" in told


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_a_limit_takes_the_oldest_also_where_callers_choose_ids(command):
    make = a_job if command == "cancel" else discarded
    ids = [make(id=UUID(int=number)).pk for number in (3, 1, 2)]
    before = dict(Job.objects.values_list("pk", "state"))
    for turn in (1, 2):
        jobs(command, "--type", "email.send", "--limit", "1")
        after = dict(Job.objects.values_list("pk", "state"))
        assert [id for id in ids if after[id] != before[id]] == ids[:turn]


def test_dead_letters_are_retried_in_parts_the_oldest_first():
    dead = [discarded() for _ in range(3)]
    Job._base_manager.exclude(pk=dead[0].pk).update(dead_letter=True)
    jobs("retry", "--dead-letter", "--limit", "1")
    assert Job.objects.exclude(state="discarded").get() == dead[1]


def test_what_failed_lately_is_found_though_it_was_enqueued_long_ago():
    ids = [str(discarded().pk) for _ in range(2)]
    now = timezone.now()
    for pk, days in zip(ids, (0, 2), strict=True):
        end, created = now - timezone.timedelta(days=days), now - timezone.timedelta(days=9)
        Job._base_manager.filter(pk=pk).update(created_at=created, finished_at=end)
    a_job()
    for option, found in {"--finished-since": ids[:1], "--finished-until": ids[1:]}.items():
        assert [line.split()[0] for line in jobs("list", option, "P1D").splitlines()[1:]] == found


def test_who_retries_dead_letters_is_told_that_a_policy_makes_them():
    discarded()
    Job._base_manager.update(dead_letter=False)
    assert "only if its retry policy has on_exhaustion='dead_letter'" in jobs("retry", "--dead-letter")


def test_jobs_are_found_by_their_worker_and_by_their_time():
    old, new = a_job(), a_job()
    now = timezone.now()
    Job._base_manager.filter(pk=old.pk).update(worker_id="w:1", created_at=now - timezone.timedelta(hours=2))
    found = {
        arguments: [line.split()[0] for line in jobs("list", *arguments).splitlines()[1:]]
        for arguments in [
            ("--worker", "w:1"),
            ("--since", "PT1H"),
            ("--until", "PT1H"),
            ("--since", f"{now - timezone.timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}", "--until", "PT1H"),
        ]
    }
    assert list(found.values()) == [[str(old.pk)], [str(new.pk)], [str(old.pk)], [str(old.pk)]]


# workers, crons


def a_worker(id, queues, *, heard_before=0):
    heard = timezone.now() - timezone.timedelta(seconds=heard_before)
    WorkerProcess.objects.create(id=id, hostname="h", queues=queues, started_at=heard, heartbeat_at=heard, claimed=2)


def test_workers_are_shown_and_queues_that_nobody_takes():
    a_worker("h:1:a", ["mail-*", "!mail-slow"])
    WorkerProcess.objects.update(started_at=timezone.now() - timedelta(days=3, hours=1))
    a_worker("h:2:b", ["reports"], heard_before=60)
    for queue in ("mail-fast", "mail-slow", "reports", "held"):
        a_job(queue=queue)
    Queue.objects.pause("held")
    heading, first, second, *problems = jobs("workers").splitlines()
    assert heading.split() == ["worker", "state", "heard", "started", "claimed", "done", "queues"]
    name, state, _, _, *rest = first.split()
    assert [name, state, *rest] == ["h:1:a", "running", "3d", "ago", "2", "0", "mail-*", "!mail-slow"]
    assert second.split()[:4] == ["h:2:b", "silent", "1m", "ago"]
    assert problems == [
        "No running worker says that it takes mail-slow; 1 available in it.",
        "No running worker says that it takes reports; 1 available in it.",
        "No handler here: email.send. Such jobs wait for workers that have one.",
    ]


def test_all_workers_are_shown_those_heard_last_first(monkeypatch):
    monkeypatch.setattr(report, "MOST_WORKERS", 1)
    a_worker("h:1:a", ["mail"], heard_before=10)
    a_worker("h:2:b", ["reports"])
    a_job(queue="mail")
    _, first, second, *_ = jobs("workers").splitlines()
    assert (first[:5], second[:5]) == ("h:2:b", "h:1:a")


def test_without_workers_the_table_of_workers_says_how_to_start_one():
    assert jobs("workers") == "No worker runs on database 'default'. `manage.py runworker` starts one.\n"


def test_periodic_jobs_are_shown_with_what_became_of_the_last_one():
    assert "No periodic jobs" in jobs("crons")
    now = timezone.now()
    for name, enabled in [("a.nightly", True), ("b.off", False)]:
        CronJob.objects.define(name, "@every PT1H", "report.daily", enabled=enabled)
    overdue, last = now - timezone.timedelta(minutes=5), a_job()
    ran = {"next_run_at": overdue, "last_job_id": last.pk, "last_run_at": now - timezone.timedelta(hours=5)}
    skipped = {"last_outcome": "skipped", "last_outcome_at": now - timezone.timedelta(minutes=2), "outcome_count": 5}
    CronJob.objects.filter(name="a.nightly").update(**ran, **skipped)
    _, nightly, off = jobs("crons").splitlines()
    assert " ".join(nightly.split()) == (
        f"a.nightly @every PT1H UTC 5m ago skipped 2m ago, 5 times in a row {last.pk} 5h ago"
    )
    assert off.split() == ["b.off", "@every", "PT1H", "UTC", "disabled", "-", "-", "-"]


# queues


def test_queues_are_shown_with_their_counts_their_pause_and_their_limit():
    for _ in range(3):
        a_job(queue="emails")
    a_job(queue="emails", scheduled_at=timezone.now() + timedelta(hours=1))
    discarded(queue="finished")
    Queue.objects.pause("reports")
    Queue.objects.filter(name="reports").update(paused_at=timezone.now() - timedelta(days=3, hours=1))
    Queue.objects.limit("emails", 2)
    Queue.objects.rate_limit("reports", 5)
    Queue.objects.limit("free", 2)
    Queue.objects.limit("free", None)
    heading, emails, reports, *_ = jobs("queues").splitlines()
    assert heading.split() == ["queue", "available", "active", "scheduled", "retryable", "pending", "paused", "limit"]
    assert emails.split() == ["emails", "3", "0", "1", "0", "0", "-", "2"]
    assert reports.split() == ["reports", "0", "0", "0", "0", "0", "3d", "ago", "5/s"]


@pytest.mark.parametrize("types", [[], ["a"]])
def test_of_too_many_jobs_it_is_said_that_not_all_were_asked_for_their_handlers(types, monkeypatch):
    a_worker("h:1:a", ["*"])
    a_job()
    monkeypatch.setattr(show_system, "every_unknown_type", lambda *given: Unknown(types, True))
    (said,) = separately("queues")[1].splitlines()
    assert said == (
        "No handler here: a, and perhaps others. Such jobs wait for workers that have one."
        if types
        else "The first jobs of the queues have handlers here; to look at all of them takes too long."
    )


@pytest.mark.parametrize("command", ["queues", "workers"])
def test_what_nobody_takes_is_said_below_the_table_with_what_was_meant(command, handlers):
    job("letter.count")(lambda: None)
    a_worker("h:1:a", ["letter", "reports"])
    for queue in ("letters", "letters", "reports", "held"):
        a_job("letter.cuont", queue=queue)
    Queue.objects.pause("held")
    assert separately(command)[1].splitlines() == [
        "No running worker says that it takes letters; 2 available in it."
        " One takes 'letter', in which there is no job: was 'letters' meant?",
        "No handler here: letter.cuont (did you mean 'letter.count'?). Such jobs wait for workers that have one.",
    ]


@pytest.mark.parametrize("command", ["queues", "workers"])
@pytest.mark.parametrize(("queues", "some"), [(["a"], "a queue"), (["a", "b"], "2 queues")])
def test_where_no_worker_runs_that_is_said_once_for_all_queues(command, queues, some, handlers):
    job("email.send")(lambda: None)
    a_worker("h:1:a", ["*"], heard_before=60)
    for queue in queues:
        a_job(queue=queue)
    complained = f"Jobs wait in {some}, and no worker runs: `manage.py runworker` starts one."
    assert separately(command)[1].splitlines() == [complained]


def test_where_all_is_taken_nothing_is_said_below_the_tables(handlers):
    job("email.send")(lambda: None)
    a_worker("h:1:a", ["*"])
    a_job()
    assert [separately(command)[1] for command in ("queues", "workers")] == ["", ""]


def test_without_anything_in_any_queue_the_table_of_queues_says_so():
    assert "No queue has unfinished jobs" in jobs("queues")


def test_queues_are_paused_and_resumed():
    for queue in ("emails", "reports"):
        discarded(queue=queue)
    a_job(queue="emails")
    assert jobs("pause", "emails", "reports").splitlines() == [
        "Paused emails; 1 available job in it.",
        "Paused reports; 0 available jobs in it.",
    ]
    assert "Was paused already: emails" in jobs("pause", "emails")
    assert "Resumed emails" in jobs("resume", "emails")
    assert "Was not paused: emails" in jobs("resume", "emails")
    assert list(Queue.objects.exclude(paused_at=None).values_list("name", flat=True)) == ["reports"]


def test_a_queue_is_limited_and_freed():
    assert "At most 3 jobs of emails run at once." in jobs("limit", "emails", "3")
    assert Queue.objects.get().concurrency_limit == 3
    assert "emails has no limit." in jobs("limit", "emails", "none")
    assert Queue.objects.get().concurrency_limit is None
    assert "At most 3 jobs of emails start in a second." in jobs("limit", "emails", "3", "--per-second")
    assert (Queue.objects.get().concurrency_limit, Queue.objects.get().max_per_second) == (None, 3)
    assert "emails has no limit per second." in jobs("limit", "emails", "none", "--per-second")
    assert Queue.objects.get().max_per_second is None


QUEUE_COMMANDS = {
    "pause": ["pause", "emials"],
    "resume": ["resume", "emials"],
    "limit": ["limit", "emials", "3"],
    "rate": ["limit", "emials", "3", "--per-second"],
    "none": ["limit", "emials", "none"],
}


@pytest.mark.parametrize("arguments", QUEUE_COMMANDS.values(), ids=QUEUE_COMMANDS)
def test_a_queue_that_nothing_knows_is_doubted_with_the_near_name_and_the_command_goes_on(arguments):
    discarded(queue="emails")
    told, complained = separately(*arguments)
    assert "Nothing knows the queue 'emials': no job, no worker, no handler. Did you mean 'emails'?" in complained
    assert ("`jobs resume` takes the pause back." in complained) is (arguments[0] == "pause")
    assert "emials" in told
    assert Queue.objects.exists() is (arguments[0] == "pause" or "3" in arguments)


def test_without_a_near_name_the_doubt_says_where_to_look():
    complained = separately("pause", "nosuch")[1]
    assert "Nothing knows the queue 'nosuch'" in complained
    assert "`jobs queues` shows those that have jobs." in complained


@pytest.mark.parametrize("known_by", ["job", "finished", "worker", "pattern", "handler", "row", "setting"])
def test_a_queue_that_something_knows_is_not_doubted(known_by, handlers, settings):
    if known_by == "job":
        a_job(queue="emails", scheduled_at=timezone.now() + timedelta(hours=1))
    elif known_by == "finished":
        discarded(queue="emails")
    elif known_by == "worker":
        a_worker("w", ["emails"])
    elif known_by == "pattern":
        a_worker("w", ["em*", "!other"])
    elif known_by == "handler":
        job("email.known", queue="emails")(lambda: None)
    elif known_by == "row":
        Queue.objects.limit("emails", 2)
    else:
        settings.OJS_UNIQUE = {"DEFAULT_QUEUE": "emails"}
    for arguments in QUEUE_COMMANDS.values():
        assert separately(arguments[0], "emails", *arguments[2:])[1] == ""


@pytest.mark.parametrize("patterns", [["*"], ["*", "!other"], ["em*", "!emails"]])
def test_a_worker_that_takes_any_queue_or_leaves_this_one_out_does_not_know_it(patterns):
    a_worker("w", patterns)
    assert "Nothing knows the queue 'emails'" in separately("pause", "emails")[1]


@pytest.mark.django_db(databases=["default", "other"])
def test_the_database_can_be_named():
    job = Job.objects.using("other").enqueue("email.send").job
    assert "There are no jobs" in jobs("list")
    assert str(job.pk) in jobs("list", "--database", "other")
    assert "Cancelled" in jobs("cancel", str(job.pk), "--database", "other")
    jobs("pause", "emails", "--database", "other")
    assert Queue.objects.using("other").exists()
    assert not Queue.objects.exists()


# bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--state", "discard"], "Did you mean 'discarded'?"),
        (["list", "--state", "ACTIVE"], "Did you mean 'active'?"),
        (["list", "--queue", "E Mails"], "queue: is not a valid name"),
        (["list", "--type", "Email"], "type: is not a valid name"),
        (["list", "--limit", "0"], "must be a whole number of at least 1"),
        (["show", "42"], "'42' is not a UUID"),
        (["show"], "required: ID"),
        (["show", "00000000-0000-0000-0000-000000000000"], "It may have been pruned."),
        (["cancel", "x", "y"], "'x' is not a UUID"),
        (["retry"], "Which jobs? Name their ids, or choose them by a filter"),
        (["cancel", "--limit", "3"], "Which jobs?"),
        (["cancel", "--dry-run"], "Which jobs?"),
        (["cancel", "01890a5d-ac96-774b-bcce-b302099a8057", "--queue", "emails"], "not both"),
        (["retry", "01890a5d-ac96-774b-bcce-b302099a8057", "--limit", "1"], "not both"),
        (["cancel", "--since", "yesterday"], "'yesterday' is no date and time"),
        (["list", "--since", "0001-01-01T00:00"], "'0001-01-01T00:00' is no date and time"),
        (["list", "--until", "PT"], "Write PT30M or P1D"),
        (["list", "--until", "P1Y"], "Write PT30M or P1D"),
        (["release"], "required: ID"),
        (["pause", "*"], "queue: is not a valid name"),
        (["pause", "emails", "No"], "queue: is not a valid name"),
        (["limit", "emails", "many"], "must be a whole number of at least 1"),
        (["limit", "emails", "9" * 5000], "must be a whole number of at least 1"),
        (["limit", "emails"], "required: N"),
        (["queues", "--database", "nowhere"], "invalid choice: 'nowhere'"),
        (["verify", "--fxi"], "unrecognized arguments: --fxi"),
        (["rekey", "--type", "E Mail"], "type: is not a valid name"),
        (["rekey", "--type", "no.such"], "type: has no registered handler (got 'no.such')"),
        (["lst"], "invalid choice: 'lst'"),
        ([], "required: SUBCOMMAND"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_bad_input_gets_one_clear_line_and_changes_nothing(arguments, message):
    assert message in refused(*arguments)
    assert not Queue.objects.exists()


# help


@pytest.mark.parametrize("name", [None, *(subcommand.name for subcommand in SUBCOMMANDS)])
def test_help_teaches(name, capsys):
    with pytest.raises(SystemExit) as end:
        jobs(*([name] if name else []), "--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    if name is None:
        assert "examples:" in text
        assert all(subcommand.name in text for subcommand in SUBCOMMANDS)
    else:
        assert "--database" in text
        assert len(text.split("\n\n")[1]) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [(["list", "--state", "discard"], 2), (["show", str(uuid4())], 1)])
def test_the_shell_sees_a_refusal_in_the_exit_code(arguments, code):
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-m", "django", "jobs", *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert answer.returncode == code
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_gets_its_escape(monkeypatch, encoding):
    a_job(args={"name": "\N{SNOWMAN}"}, key="\N{PILE OF POO}")
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", shown)
    call_command("jobs", "list")
    call_command("jobs", "show", str(Job.objects.get().pk))
    shown.flush()
    text = shown.buffer.getvalue().decode(encoding)
    assert "\\u2603" in text
    assert "\\U0001f4a9" in text
    assert shown.errors == "strict"


def test_a_reader_that_has_read_enough_sees_no_traceback(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    redirected = []
    monkeypatch.setattr(os, "dup2", lambda *ends: redirected.append(ends))
    with pytest.raises(SystemExit) as end:
        jobs("list", out=Closed())
    assert end.value.code == 128 + SIGPIPE
    assert redirected  # or Python would complain once more when it ends


# explain and duplicates


def test_explain_says_what_an_enqueue_would_do_and_enqueues_nothing():
    held = a_job(args={"user_id": 42}, unique=UniquePolicy(keys=["args"]))
    text = jobs("explain", "email.send", "--args", '{"user_id": 42}', "--unique", '{"keys": ["args"]}')
    assert text.startswith(f"would reject: job {held.pk} is available, and on_conflict is reject.")
    assert held.fingerprint in text
    assert Job.objects.count() == 1
    assert not SuppressedEnqueue.objects.exists()


def test_explain_takes_a_key_and_a_time_and_no_policy():
    assert "no job holds the key" in jobs("explain", "t", "--key", "k", "--key-mode", "preserve_run_at")
    assert "carries no unique policy" in jobs("explain", "t", "--unique", "null", "--scheduled-at", "2031-01-31T14:00")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--args", "{"], "This is not JSON: line 1, column 2"),
        (["--args", '{"a": 1, "a": 2}'], "An object has the member 'a' twice"),
        (["--meta", "NaN"], "NaN is not JSON"),
        (["--unique", '{"key": []}'], "did you mean"),
        (["--scheduled-at", "tomorrow"], "'tomorrow' is no date and time"),
        (["--key-mode", "keep"], "invalid choice"),
        (["--delay", "10m"], "delay: is not an ISO 8601 duration"),
        (["--delay", "PT1M", "--scheduled-at", "2031-01-31T14:00"], "cannot be combined with scheduled_at"),
    ],
)
def test_explain_refuses_what_makes_no_sense(arguments, said):
    with pytest.raises((CommandError, SystemExit)) as error:
        jobs("explain", "t", *arguments)
    assert said.lower() in str(error.value).lower()


def test_duplicates_says_that_there_are_none():
    assert jobs("duplicates").splitlines() == [
        "No enqueue met a duplicate in the last day.",
        "No live jobs share a fingerprint.",
    ]


def test_duplicates_shows_what_was_suppressed_and_what_lives_twice():
    ignoring = UniquePolicy(on_conflict="ignore")
    dead = discarded(unique=ignoring)
    live = a_job(unique=ignoring)
    a_job(unique=ignoring, args={"locale": "de"})
    dead.retry(force=True)
    text = jobs("duplicates", "--span", "hour")
    met = next(line for line in text.splitlines() if line.startswith(live.fingerprint[:16]))
    assert met.split()[1:4] == ["0", "1", "0"]
    assert {str(dead.pk), str(live.pk)} <= set(text.split())
    for term in (str(live.pk), live.fingerprint[:8]):
        shown = jobs("duplicates", term)
        assert {str(dead.pk), str(live.pk), "deduplicated"} <= set(shown.split())


@pytest.mark.parametrize(("term", "said"), [("abc", "Write a job's id"), ("a" * 8, "No job has"), ("%", "Write a")])
def test_duplicates_says_how_to_write_a_fingerprint(term, said):
    assert said in refused("duplicates", term)


# text


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0s"), (59, "59s"), (60, "1m"), (7300, "2h"), (90_000, "1d"), (-61, "in 1m")]
)
def test_an_age_is_said_in_its_largest_unit(seconds, said):
    now = timezone.now()
    assert age(now - timezone.timedelta(seconds=seconds), now) == said


def test_a_moment_that_never_was_has_no_age():
    assert age(None, timezone.now()) == "-"


def test_harmless_text_is_left_as_it_is():
    assert harmless("Grüße, 世界 🎉") == "Grüße, 世界 🎉"
    assert harmless("a\n\tb", lines=True) == "a\n        b"
    assert harmless("\ud800\x00") == "\\ud800\\x00"


def test_a_table_shortens_the_widest_column_and_no_column_to_nothing():
    lines = list(table(["a", "b"], [["x" * 50, "y" * 20]], width=40, cut=[0, 1]))
    assert lines[1] == f"{'x' * 18}…  {'y' * 18}…"
    assert list(table(["a"], [["x" * 50]], width=1, cut=[0]))[1] == f"{'x' * 7}…"
