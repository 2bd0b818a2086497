"""What Sentry gets of jobs, from its own SDK with a transport that keeps what it would send."""

import logging
import runpy
import subprocess
import sys
from importlib.util import find_spec

import pytest
import sentry_sdk
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_ojs_unique import Cron, Discard, Skip, UniquePolicy, hooks, job
from django_ojs_unique.contrib import sentry
from django_ojs_unique.contrib.sentry import OJSIntegration
from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Job
from django_ojs_unique.signals import job_discarded
from django_ojs_unique.testing import run_jobs
from tests.support.secrets import ARGS, META, SECRET, assert_hidden

pytestmark = pytest.mark.django_db

ONCE = {"max_attempts": 1}


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self, options=None):
        super().__init__(options)
        self.items = []

    def capture_envelope(self, envelope):
        self.items += [(item.type, item.payload.json) for item in envelope.items]

    def of(self, type):
        return [payload for kind, payload in self.items if kind == type]


@pytest.fixture
def sent():
    """Initialise the SDK as a project does; afterwards there is no client, and no tracer of ours."""
    before = hooks.tracer()

    def init(integrations=(), **options):
        transport = Kept()
        sentry_sdk.init(
            dsn="http://key@localhost/1",
            transport=transport,
            auto_enabling_integrations=False,
            default_integrations=False,  # which would patch this process for good
            enable_backpressure_handling=False,  # which would start a thread
            integrations=[LoggingIntegration(), *integrations],
            **options,
        )
        hooks.trace_with(before)
        if integrations:  # the SDK does this once per process
            OJSIntegration.setup_once()
        return transport

    yield init
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init(auto_enabling_integrations=False, default_integrations=False)
    hooks.trace_with(before)
    job_discarded.disconnect(dispatch_uid="django_ojs_unique.contrib.sentry")


@pytest.fixture
def kept(sent):
    return sent(integrations=[OJSIntegration()], traces_sample_rate=1.0)


def failing(error=None, **options):
    @job("report.build", **options)
    def build(**kwargs):
        sentry_sdk.add_breadcrumb(message="before the failure")
        raise error or ValueError("no data")

    return build


def test_a_discarded_job_is_one_error_with_its_traceback_and_breadcrumbs(kept, handlers):
    failing(retry=ONCE).enqueue(month=5)
    run_jobs(raise_errors=False)
    (event,) = kept.of("event")
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("ValueError", "no data")
    assert exception["stacktrace"]["frames"][-1]["function"] == "build"
    assert event["transaction"] == "report.build"
    assert event["transaction_info"] == {"source": "task"}
    assert "before the failure" in [crumb.get("message") for crumb in event["breadcrumbs"]["values"]]
    assert event["tags"]["ojs.queue"] == "default"
    about = event["contexts"]["job"]
    assert (about["id"], about["attempt"], about["max_attempts"]) == (str(Job.objects.get().pk), 1, 1)
    assert "args" not in about


def test_arguments_are_sent_only_if_the_project_allows_it(sent, handlers):
    kept = sent(integrations=[OJSIntegration()], data_collection={"queues": True})
    failing(retry=ONCE).enqueue(month=5)
    run_jobs(raise_errors=False)
    assert kept.of("event")[0]["contexts"]["job"]["args"] == {"month": 5}


def test_an_attempt_that_is_retried_is_no_event_and_the_last_one_is(kept, handlers):
    failing(retry={"max_attempts": 2, "initial_interval": "PT1S"}).enqueue()
    run_jobs(raise_errors=False)
    assert kept.of("event") == []
    Job._base_manager.update(run_at=timezone.now())
    run_jobs(raise_errors=False)
    (event,) = kept.of("event")
    assert event["contexts"]["job"]["attempt"] == 2


@pytest.mark.parametrize("error", [Discard("not wanted"), Skip("nothing to do")])
def test_what_a_handler_does_on_purpose_is_no_event(kept, handlers, error):
    failing(error, retry=ONCE).enqueue()
    run_jobs(raise_errors=False)
    assert kept.of("event") == []


@pytest.mark.parametrize("args", [ARGS, [SECRET, [], 5]])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_event_has_no_redacted_member_and_no_variables_of_our_frames(sent, handlers, args, is_async):
    kept = sent(integrations=[OJSIntegration()], data_collection={"queues": True, "stack_frame_variables": True})

    def fail(iban, to=(), amount=0):
        copied = {"to": to}
        raise ValueError(len(copied))

    async def afail(iban, to=(), amount=0):
        fail(iban, to, amount)

    handler = job("bank.pay", redact=["iban"], retry=ONCE)(afail if is_async else fail)
    Job.objects.enqueue("bank.pay", args, meta=META)
    run_jobs(raise_errors=False)
    (event,) = kept.of("event")
    frames = event["exception"]["values"][0]["stacktrace"]["frames"]
    assert [frame["module"] for frame in frames if "vars" in frame] == [__name__] * (1 + is_async)
    assert frames[-1]["vars"]["amount"] == ("5" if "vars" in frames[-1] else "")
    assert_hidden(str(event))
    assert handler.definition.redact == ("iban",)


def test_without_redaction_an_event_keeps_the_variables_of_all_frames(sent, handlers):
    kept = sent(integrations=[OJSIntegration()], data_collection={"stack_frame_variables": True})
    failing(retry=ONCE).enqueue(month=5)
    run_jobs(raise_errors=False)
    frames = kept.of("event")[0]["exception"]["values"][0]["stacktrace"]["frames"]
    assert [frame for frame in frames if frame["module"].startswith("django_ojs_unique") and "vars" in frame]


def test_breadcrumbs_and_tags_of_one_job_are_not_those_of_the_next(kept, handlers):
    handler = failing(retry=ONCE)

    @job("report.tag")
    def tag():
        sentry_sdk.set_tag("leaked", "yes")
        sentry_sdk.add_breadcrumb(message="of another job")

    tag.enqueue()
    handler.enqueue()
    run_jobs(raise_errors=False)
    (event,) = kept.of("event")
    assert "leaked" not in event["tags"]
    assert "of another job" not in [crumb.get("message") for crumb in event["breadcrumbs"]["values"]]


@pytest.mark.slow
def test_an_async_handler_is_reported_alike(kept, handlers):
    @job("report.fetch", retry=ONCE)
    async def fetch():
        raise ValueError("no data")

    fetch.enqueue()
    run_jobs(raise_errors=False)
    (event,) = kept.of("event")
    assert (event["transaction"], event["exception"]["values"][0]["value"]) == ("report.fetch", "no data")


def test_an_attempt_continues_the_trace_of_its_enqueue(kept, handlers):
    @job("report.ok", unique=UniquePolicy())
    def ok():
        pass

    with sentry_sdk.start_transaction(name="the request") as request:
        ok.enqueue()
    run_jobs(raise_errors=False)
    outer, inner = kept.of("transaction")
    assert [span["op"] for span in outer["spans"]].count("queue.publish") == 1
    assert (inner["transaction"], inner["contexts"]["trace"]["op"]) == ("report.ok", "queue.process")
    assert inner["contexts"]["trace"]["trace_id"] == request.trace_id
    assert inner["contexts"]["trace"]["status"] == "ok"


def test_a_job_that_was_enqueued_elsewhere_and_is_traced_by_nobody_runs(kept, handlers):
    @job("report.ok")
    def ok():
        pass

    ok.enqueue()
    Job.objects.update(meta=[])
    assert len(run_jobs(raise_errors=False)) == 1


@pytest.mark.skipif(not (find_spec("django.tasks") or find_spec("django_tasks")), reason="there are no tasks")
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_failing_task_of_django_is_one_event_and_each_attempt_one_transaction(kept, handlers, attempts, caplog):
    from tests.app import tasks

    tasks.fail.using(retry={"max_attempts": attempts}).enqueue("no data")
    assert len(run_jobs(retries=True, raise_errors=False)) == attempts
    (event,) = kept.of("event")
    assert (event["exception"]["values"][-1]["value"], event.get("logger")) == ("no data", None)
    names = [transaction["transaction"] for transaction in kept.of("transaction")]
    assert names == ["task.tests.app.tasks.fail"] * attempts
    assert "state=FAILED" in caplog.text


def test_what_django_logs_about_tasks_of_other_backends_is_still_an_event(kept):
    logging.getLogger("django.tasks").error("Task id=1", exc_info=ValueError("elsewhere"))
    (event,) = kept.of("event")
    assert event["logger"] == "django.tasks"


def test_without_our_integration_a_discarded_job_is_an_event_of_the_log(sent, handlers):
    kept = sent()
    failing(retry=ONCE).enqueue()
    run_jobs(raise_errors=False)
    (event,) = kept.of("event")
    assert event["logger"].startswith("django_ojs_unique")
    assert event["exception"]["values"][0]["value"] == "no data"


@pytest.mark.slow
def test_a_periodic_job_checks_in_and_a_manual_run_does_not(sent, handlers):
    kept = sent(integrations=[OJSIntegration(monitor_cron=True)])
    failures = []

    @job("report.daily", cron=Cron("0 3 * * *", timezone="Europe/Berlin"), retry=ONCE)
    def daily():
        if failures:
            raise ValueError

    now = timezone.now()
    cron.sync("default", now)
    for _ in range(2):
        CronJob.objects.update(next_run_at=now - timezone.timedelta(days=1))
        CronJob.objects.update(last_job_id=None)
        cron.tick("default", now)
        run_jobs(raise_errors=False)
        failures.append(1)
        Job.objects.all().delete()
    said = [(item["monitor_slug"], item["status"]) for item in kept.of("check_in")]
    assert said == [("report-daily", status) for status in ("in_progress", "ok", "in_progress", "error")]
    assert kept.of("check_in")[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"},
        "timezone": "Europe/Berlin",
    }
    daily.enqueue()
    run_jobs(raise_errors=False)
    assert len(kept.of("check_in")) == 4


@pytest.mark.slow
def test_settings_import_it_before_django_is_configured():
    code = "import sentry_sdk; from django_ojs_unique.contrib.sentry import OJSIntegration;"
    code += "sentry_sdk.init(integrations=[OJSIntegration()]); print('configured')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": ""}, timeout=60)
    assert done.stdout == "configured\n", done.stderr


def test_a_missing_sdk_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-ojs-unique\[sentry\]'"):
        runpy.run_path(sentry.__file__)


def test_it_adds_to_another_tracer():
    seen = []

    class Other(hooks.Tracer):
        def flush(self):
            seen.append("flushed")

    before = hooks.trace_with(Other())
    try:
        hooks.trace_also_with(Other())
        hooks.tracer().flush()
    finally:
        hooks.trace_with(before)
    assert seen == ["flushed", "flushed"]
