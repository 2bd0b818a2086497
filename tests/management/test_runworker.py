import io
import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from django_ojs_unique import Cron, job
from django_ojs_unique.management.commands import runworker
from django_ojs_unique.management.commands.runworker import Command
from django_ojs_unique.models import CronJob, Job
from tests.support.pages import text_of
from tests.support.retries import IN_AN_HOUR

pytestmark = pytest.mark.django_db(transaction=True)


def run(name="runworker", **options):
    out = io.StringIO()
    call_command(name, drain=True, stdout=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("name", ["runworker", "ojs_worker"])
def test_draining_an_empty_queue_says_so_and_ends(name):
    assert "0 completed" in run(name)


def count_statements(**options):
    said = []

    def note(execute, sql, *rest):
        said.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        run(**options)
    return len(said)


@pytest.mark.slow
def test_draining_an_empty_queue_takes_few_statements(handlers):
    job("t", cron="0 3 1 1 *")(lambda: None)
    run()  # writes the entry of the periodic job
    Job.objects.enqueue("t")
    run()  # leaves a job that has finished
    assert count_statements() <= 7
    assert count_statements(queue=["emails"]) <= 9


@pytest.mark.slow
def test_a_drain_does_all_that_is_due_before_it_calls_the_queue_empty(handlers):
    job("t", cron=Cron("0 0 29 2 *", "UTC"))(lambda: None)
    run()
    CronJob.objects.update(next_run_at=datetime(2024, 2, 29, tzinfo=UTC))
    assert "1 completed" in run()
    CronJob.objects.update(expression="0 0 * * *", timezone="Asia/Tokyo")  # as an older version of the code declared it
    run()
    assert CronJob.objects.get().expression == "0 0 29 2 *"
    past = timezone.now() - timezone.timedelta(minutes=1)
    for change in (
        {"state": "scheduled", "run_at": past},
        {"state": "retryable", "run_at": past},
        {"state": "active", "lease_expires_at": past, "lease_token": uuid4(), "attempt": 1},
    ):
        Job._base_manager.filter(pk=Job.objects.enqueue("t").job.pk).update(**change)
        assert "1 completed" in run(), change
    late = Job.objects.enqueue("t", expires_at=past + timezone.timedelta(hours=1)).job
    Job.objects.filter(pk=late.pk).update(expires_at=past)
    run()
    late.refresh_from_db()
    assert late.state == "discarded"


def test_the_report_counts_what_was_done_and_what_waits(handlers):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Job.objects.enqueue("t", scheduled_at=timezone.now() + timezone.timedelta(hours=1))
    Job.objects.enqueue("stranger")
    report = run()
    assert "1 completed" in report
    assert "Waiting for their time: 1 job" in report
    assert "stranger" in report


def test_quiet_is_quiet(handlers, settings):
    settings.OJS_UNIQUE = {"EAGER": True}
    assert run(verbosity=0) == ""


def test_eager_mode_is_said(handlers, settings):
    assert "EAGER" not in run()
    settings.OJS_UNIQUE = {"EAGER": True}
    assert "OJS_UNIQUE['EAGER'] is on: due jobs run in the process that enqueues them." in run()


@pytest.mark.parametrize("concurrency", ["0", "-1", "x"])
def test_a_concurrency_that_is_no_positive_number_is_refused(concurrency):
    with pytest.raises(CommandError, match="--concurrency"):
        call_command("runworker", "--drain", "--concurrency", concurrency)


def test_an_unknown_database_is_refused():
    with pytest.raises(CommandError, match="'nowhere'"):
        call_command("runworker", "--database", "nowhere")


def test_an_app_without_handlers_gets_one_clear_line(handlers):
    for type in list(handlers):
        handlers.unregister(type)
    with pytest.raises(CommandError, match=r"@job"):
        run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "1001"], "--concurrency: must be a whole number from 1 to 1,000, not '1001'"),
        (["--concurrency", "9" * 5000], "--concurrency: must be a whole number from 1 to 1,000, not '999"),
        (["--concurrency", "1.5"], "--concurrency: must be a whole number from 1 to 1,000, not '1.5'"),
        (["--async-concurrency", "0"], "--async-concurrency: must be a whole number of at least 1, not '0'"),
        (["--processes", "0"], "--processes: must be a whole number of at least 1, not '0'"),
        (["--max-jobs", "-3"], "--max-jobs: must be a whole number of at least 1, not '-3'"),
        (["--lease", "0"], "--lease: must be a number above 0, up to a year, not '0'"),
        (["--lease", "soon"], "--lease: must be a number above 0, up to a year, not 'soon'"),
        (["--lease", "nan"], "--lease: must be a number above 0, up to a year, not 'nan'"),
        (["--shutdown-timeout", "inf"], "--shutdown-timeout: must be a number above 0, up to a year, not 'inf'"),
        (["--queue", "NO SUCH"], "--queue: is neither a queue name nor a pattern of one"),
        (["--exclude-queue", "a?"], "--exclude-queue: is neither a queue name nor a pattern of one"),
        (["--reload", "--processes", "2"], "--reload runs one process until it is stopped"),
        (["--reload", "--drain"], "leave out --processes and --drain"),
        (["--health-file", "/no/such/directory/health"], "--health-file: there is no directory /no/such/directory"),
        (["--health-file", "/"], "--health-file: / is a directory"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_an_option_that_makes_no_sense_is_refused_with_one_clear_line(arguments, message):
    with pytest.raises(CommandError) as refusal:
        call_command("runworker", *arguments)
    assert message in str(refusal.value)


@pytest.mark.parametrize(("options", "has_color"), [((), True), (("--no-color",), False)])
def test_the_error_of_a_server_that_does_not_answer_has_color_only_if_wanted(monkeypatch, options, has_color):
    def refuse(using, seconds):
        raise CommandError("nobody answers")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(runworker, "await_server", refuse)
    monkeypatch.setattr(runworker, "end_within", lambda seconds, code: None)  # this process goes on
    command = Command(stderr=(terminal := Terminal()), force_color=True)
    with pytest.raises(SystemExit):
        command.run_from_argv(["manage.py", "runworker", *options])
    assert "nobody answers" in terminal.getvalue()
    assert ("\x1b[" in terminal.getvalue()) == has_color


def test_the_options_reach_the_worker(handlers, tmp_path):
    job("t")(lambda: None)
    for queue in ("mail-a", "mail-b", "slow"):
        for _ in range(3):
            Job.objects.enqueue("t", queue=queue)
    report = run(
        queue=["mail-*", "slow"],
        exclude_queue=["*-b"],
        concurrency=2,
        lease=5.0,
        max_jobs=4,
        health_file=str(tmp_path / "health"),
    )
    assert "4 completed" in report
    assert Job.objects.filter(queue="mail-b", state="available").count() == 3
    assert list(tmp_path.iterdir()) == []


def test_a_report_counts_what_was_skipped_retried_and_discarded(handlers):
    job("skips", skip_unless=lambda: False)(lambda: None)
    job("fails", retry=IN_AN_HOUR)(lambda: 1 / 0)
    job("gives.up", retry={"max_attempts": 1})(lambda: 1 / 0)
    for type in ("skips", "fails", "gives.up"):
        Job.objects.enqueue(type)
    assert "0 completed, 1 skipped, 1 to be retried, 1 discarded, 0 refused, 0 requeued." in run()


def test_the_how_to_names_options_that_exist():
    options = {
        name for action in Command().create_parser("manage.py", "runworker")._actions for name in action.option_strings
    }
    named = set(re.findall(r"--[a-z][a-z-]+", text_of("docs/run-a-worker.md")))
    assert named
    assert named <= options
