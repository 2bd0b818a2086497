"""Gauges of what the database says, on a view for those who may; counters of what a worker does, on its own port."""

import socket
from contextlib import nullcontext
from datetime import timedelta
from urllib.request import urlopen

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from django_ojs_unique import Limit, Retry, Skip, job
from django_ojs_unique.contrib.prometheus import JobsCollector, MetricsView
from django_ojs_unique.contrib.prometheus import collector as collecting
from django_ojs_unique.contrib.prometheus.worker import WorkerMetrics, serving
from django_ojs_unique.execution.finalize import Finalized
from django_ojs_unique.execution.run import Run
from django_ojs_unique.models import InboxRequest, Job, LimitPartition, Queue, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.reporting import limits as limits_report
from django_ojs_unique.reporting import queues as reports
from django_ojs_unique.reporting import workers as workers_report
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker.loop import Worker
from tests.db.test_time_limit import ENDLESS
from tests.support.claiming import Claiming
from tests.support.limits import take
from tests.support.ports import reserved_port
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.django_db

TOKEN = "correct horse"
HOUR = timedelta(hours=1)


@pytest.fixture
def gauge():
    registry = CollectorRegistry()
    registry.register(JobsCollector())
    return lambda name, **labels: registry.get_sample_value(name, labels)


def enqueue(*queues, **options):
    return [Job.objects.enqueue("t", queue=queue, **options).job for queue in queues]


def worker(name, *queues, heard=timedelta()):
    now = timezone.now()
    WorkerProcess.objects.create(
        id=name, hostname="h", queues=list(queues), started_at=now - HOUR, heartbeat_at=now - heard
    )


# What the database says


def test_unfinished_jobs_are_counted_by_queue_and_state(gauge):
    enqueue("emails", "emails", "reports")
    enqueue("emails", scheduled_at=timezone.now() + HOUR)
    assert gauge("ojs_jobs", queue="emails", state="available") == 2
    assert gauge("ojs_jobs", queue="emails", state="scheduled") == 1
    assert gauge("ojs_jobs", queue="reports", state="available") == 1
    assert gauge("ojs_jobs", queue="reports", state="active") == 0


def test_a_declared_queue_has_its_zeros_before_the_first_job(gauge, handlers):
    job("t", queue="declared")(lambda: None)
    assert gauge("ojs_jobs", queue="declared", state="available") == 0
    assert gauge("ojs_queue_oldest_waiting_seconds", queue="declared") == 0


def test_the_age_of_the_first_waiting_job_is_shown(gauge):
    old, _ = enqueue("emails", "emails")
    since = timezone.now() - HOUR
    Job._base_manager.filter(pk=old.pk).update(enqueued_at=since)
    age = gauge("ojs_queue_oldest_waiting_seconds", queue="emails")
    assert 3600 <= round(age) <= round((timezone.now() - since).total_seconds())


def test_a_job_from_a_clock_that_is_ahead_has_waited_for_no_time(gauge):
    enqueue("emails")
    Job._base_manager.update(enqueued_at=timezone.now() + HOUR)
    assert gauge("ojs_queue_oldest_waiting_seconds", queue="emails") == 0


def test_paused_and_stranded_queues_are_marked(gauge):
    enqueue("taken", "alone")
    Queue.objects.pause("alone")
    worker("w", "taken")
    assert [gauge("ojs_queue_paused", queue=name) for name in ("taken", "alone")] == [0, 1]
    assert [gauge("ojs_queue_stranded", queue=name) for name in ("taken", "alone")] == [0, 1]


def test_workers_are_counted_by_how_they_stand(gauge):
    worker("a", "*")
    worker("b", "*", heard=HOUR)
    found = {state: gauge("ojs_workers", state=state) for state in ("running", "quiet", "stopping", "silent")}
    assert found == {"running": 1, "quiet": 0, "stopping": 0, "silent": 1}


@pytest.mark.slow
def test_discarded_jobs_and_dead_letters_are_counted(gauge, handlers):
    def fails():
        raise ValueError

    job("t", retry={"max_attempts": 1})(fails)
    job("t.letter", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})(fails)
    for type in ("t", "t", "t.letter"):
        Job.objects.enqueue(type)
    run_jobs(raise_errors=False)
    assert gauge("ojs_discarded_jobs", dead_letter="false") == 2
    assert gauge("ojs_discarded_jobs", dead_letter="true") == 1
    assert gauge("ojs_recently_finished_jobs", state="discarded") == 3
    assert gauge("ojs_recently_finished_jobs", state="completed") == 0


def test_what_finished_long_ago_is_not_recent(gauge, handlers):
    job("t")(lambda: None)
    enqueue("q", "q")
    run_jobs()
    Job._base_manager.filter(pk=Job.objects.first().pk).update(finished_at=timezone.now() - HOUR)
    assert gauge("ojs_recently_finished_jobs", state="completed") == 1


@pytest.mark.slow
def test_suppressed_enqueues_of_the_last_minute_are_counted_by_outcome(gauge):
    enqueue(*["q"] * 3, unique={"on_conflict": "ignore"})
    enqueue("q", unique={"on_conflict": "replace"})
    oldest = SuppressedEnqueue.objects.earliest("pk")
    SuppressedEnqueue.objects.filter(pk=oldest.pk).update(created_at=timezone.now() - HOUR)
    found = {
        name: gauge("ojs_recently_suppressed_enqueues", outcome=name)
        for name in ("rejected", "deduplicated", "replaced")
    }
    assert found == {"rejected": 0, "deduplicated": 1, "replaced": 1}


def test_callers_cannot_make_series_without_end(gauge, handlers, monkeypatch):
    monkeypatch.setattr(collecting, "MOST_QUEUES", 2)
    job("t", queue="declared")(lambda: None)
    enqueue("made-up-1", "made-up-2", "made-up-2", "made-up-3")
    Queue.objects.pause("made-up-3")
    Job._base_manager.filter(queue="made-up-3").update(enqueued_at=timezone.now() - HOUR)
    assert gauge("ojs_jobs", queue="declared", state="available") == 0
    # The tests' own handlers may declare the default queue.
    shown = {name for name in ("made-up-1", "made-up-2", "made-up-3") if series(name)}
    assert len(shown) <= 1
    assert gauge("ojs_jobs", queue="(others)", state="available") == 4 - sum(
        gauge("ojs_jobs", queue=name, state="available") for name in shown
    )
    assert gauge("ojs_queue_paused", queue="(others)") == 1
    assert gauge("ojs_queue_oldest_waiting_seconds", queue="(others)") >= 3600


def series(queue):
    jobs = next(metric for metric in JobsCollector().collect() if metric.name == "ojs_jobs")
    return [sample for sample in jobs.samples if sample.labels["queue"] == queue]


@pytest.mark.every_database
def test_what_takes_too_long_is_left_out_and_named(gauge, monkeypatch, caplog):
    monkeypatch.setattr(collecting, "LONGEST", timedelta(seconds=0.05))
    enqueue("q")

    def slow(*args, **options):
        with connections["default"].cursor() as cursor:
            cursor.execute(ENDLESS)

    monkeypatch.setattr(collecting, "queues", slow)
    assert gauge("ojs_jobs", queue="q", state="available") is None
    assert [gauge("ojs_scrape_errors", what=what) for what in ("queues", "workers", "limits")] == [1, 0, 0]
    assert "The gauges of queues took longer than 0:00:00.050000 and are left out." in caplog.text
    assert gauge("ojs_workers", state="running") == 0
    with connections["default"].cursor() as cursor:  # later statements have no limit
        cursor.execute("SELECT 1")


@pytest.mark.every_database
def test_the_longest_wait_is_that_of_all_jobs_whatever_blocks_them(gauge, settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"fair": ["args.n"]}}
    for queue in ("q", "fair"):
        for n in (1, 1, 2, 2):
            Job.objects.enqueue("t", {"n": n}, queue=queue, limit=Limit(key=["args.n"], running=1))
        take(100, queues=[queue]), take(100, queues=[queue])
    waiting = Job._base_manager.filter(state="available")
    assert len(set(waiting.values_list("blocked_by", flat=True))) >= 4
    for one in waiting:
        waiting.update(enqueued_at=timezone.now(), priority=0)
        waiting.filter(pk=one.pk).update(enqueued_at=timezone.now() - 3 * HOUR, priority=-5)
        assert gauge("ojs_queue_oldest_waiting_seconds", queue=one.queue) >= 3 * 3600
        assert next(each for each in reports.queues("default") if each.name == one.queue).oldest == one.pk


@pytest.mark.every_database
def test_every_queue_job_and_worker_counts(gauge, monkeypatch):
    for module, name in ((reports, "MOST_QUEUES"), (reports, "MOST_COUNTED"), (workers_report, "MOST_WORKERS")):
        monkeypatch.setattr(module, name, 2)
    enqueue(*["a"] * 4, "b", "c", "d")
    for number in range(4):
        worker(f"w{number}", "abcd"[number])
    assert gauge("ojs_jobs", queue="a", state="available") == 4
    assert [gauge("ojs_jobs", queue=name, state="available") for name in "bcd"] == [1, 1, 1]
    assert [gauge("ojs_queue_stranded", queue=name) for name in "abcd"] == [0, 0, 0, 0]
    assert gauge("ojs_workers", state="running") == 4


def limited(*names, count=3):
    """Enqueue jobs of limits that let one run at a time, and let workers claim what they may."""
    for name in names:
        for _ in range(count):
            Job.objects.enqueue("t", limit=Limit(name=name, running=1))
    take(100), take(100)


def test_limits_are_counted_by_their_names_and_keys_are_not_told():
    limited("exports")
    for n in (1, 1, 2):
        Job.objects.enqueue("t", {"n": n}, limit=Limit(key=["args.n"], running=1))
    take(), take()
    registry = CollectorRegistry()
    registry.register(JobsCollector())
    names = ("ojs_limit_running_jobs", "ojs_limit_waiting_jobs", "ojs_limit_waiting_partitions")
    for limit, values in (("exports", [1, 2, 1]), ("args.n", [2, 1, 1])):
        assert [registry.get_sample_value(name, {"limit": limit}) for name in names] == values
    assert not [metric for metric in registry.collect() for sample in metric.samples if "key" in sample.labels]


@pytest.mark.every_database
def test_every_limit_job_and_partition_counts(monkeypatch, settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"b": ["args.m"]}}
    for module, name in (
        (reports, "MOST_QUEUES"),
        (limits_report, "MOST_QUEUES"),
        (limits_report, "MOST_COUNTED"),
        (limits_report, "MOST_PARTITIONS"),
        (limits_report, "MOST_NAMES"),
    ):
        monkeypatch.setattr(module, name, 1)
    many, one = Limit(key=["args.n"], running=2), Limit(name="one", running=1)
    for queue in "abc":
        for n in (1, 2, 3, 4):
            for m in (1, 2):
                Job.objects.enqueue("t", {"n": n, "m": m}, queue=queue, limit=many)
        Job.objects.enqueue("t", queue=queue, limit=one)
    for _ in range(5):
        take(100, queues=["a", "b", "c"])
    LimitPartition.objects.filter(name="one").delete()  # as after a day
    counted = {one.name: (one.running, one.waiting, one.waiting_partitions) for one in limits_report.counted("default")}
    assert counted == {"args.n": (8, 16, 4), "one": (1, 2, 1)}
    Job._base_manager.filter(state="available", limits__isnull=False).update(limits="broken")
    assert {one.name: one.waiting for one in limits_report.counted("default")}["args.n"] == 16


def test_callers_cannot_make_series_of_limits_without_end(gauge, monkeypatch):
    monkeypatch.setattr(collecting, "MOST_LIMITS", 2)
    limited("a", "b", "(others)", count=2)
    limited("c", count=4)
    assert gauge("ojs_limit_waiting_jobs", limit="c") == 3
    assert gauge("ojs_limit_waiting_jobs", limit="a") == 1
    assert gauge("ojs_limit_waiting_jobs", limit="b") is None
    assert gauge("ojs_limit_waiting_jobs", limit="(others)") == 2
    assert gauge("ojs_limit_running_jobs", limit="(others)") == 2


@pytest.mark.every_database
def test_a_scrape_is_a_few_statements(gauge):
    enqueue("a", "b", "c")
    with CaptureQueriesContext(connections["default"]) as without:
        list(JobsCollector().collect())
    limited("a", "b", count=30)
    with CaptureQueriesContext(connections["default"]) as limits:
        list(JobsCollector().collect())
    assert [len(reads(statements)) for statements in (without, limits)] == [13, 13]


def reads(statements):
    return [one for one in statements if "django_ojs_unique" in one["sql"]]


def test_a_registry_asks_for_the_names_without_a_look(django_assert_num_queries):
    collector = JobsCollector()
    with django_assert_num_queries(0):
        CollectorRegistry(auto_describe=True).register(collector)
    described = {(metric.name, metric.documentation, metric.type) for metric in collector.describe()}
    assert described == {(metric.name, metric.documentation, metric.type) for metric in collector.collect()}


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize(("routers", "using"), [([], "other"), (["tests.support.routers.JobsReadFromOther"], None)])
def test_another_database_may_be_named_or_routed_to(settings, routers, using):
    Job.objects.using("other").enqueue("t", queue="elsewhere")
    settings.DATABASE_ROUTERS = routers
    registry = CollectorRegistry()
    registry.register(JobsCollector(using))
    assert registry.get_sample_value("ojs_jobs", {"queue": "elsewhere", "state": "available"}) == 1


# The view


def scrape(view=None, user=None, **headers):
    request = RequestFactory().get("/metrics", headers=headers)
    if user is not None:
        request.user = user
    return (view or MetricsView.as_view())(request)


def test_staff_see_the_metrics():
    enqueue("emails")
    response = scrape(user=User(is_staff=True))
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert response.headers["Cache-Control"] == "no-store"
    families = {family.name: family for family in text_string_to_metric_families(response.content.decode())}
    assert {"ojs_jobs", "ojs_workers", "ojs_discarded_jobs"} <= families.keys()
    assert all(family.documentation and family.type == "gauge" for family in families.values())


@pytest.mark.parametrize("user", [None, AnonymousUser(), User(), User(is_staff=True, is_active=False)])
def test_nobody_else_does(user):
    response = scrape(user=user, authorization="Bearer None")
    assert response.status_code == 403
    assert b"staff" in response.content


def test_who_brings_the_token_sees_the_metrics():
    view = MetricsView.as_view(token=TOKEN)
    assert scrape(view, authorization=f"Bearer {TOKEN}").status_code == 200
    assert scrape(view, authorization=f"bearer {TOKEN}").status_code == 200
    assert scrape(view, user=User(is_staff=True)).status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer é"])
def test_a_wrong_token_is_asked_for(given):
    response = scrape(MetricsView.as_view(token=TOKEN), user=AnonymousUser(), authorization=given)
    assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("token", ["", " ", 7, b"bytes", "from a file\n", "é"])
def test_a_token_that_would_let_anybody_in_or_nobody_is_refused(token):
    with pytest.raises(ImproperlyConfigured, match="token"):
        MetricsView.as_view(token=token)


def test_a_request_begins_no_transaction_so_that_a_database_that_is_away_is_an_answer(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    view = MetricsView.as_view()
    assert BaseHandler().make_view_atomic(view) is view


def test_a_project_that_asks_everybody_to_log_in_does_not_ask_prometheus():
    assert MetricsView.as_view().login_required is False


def test_metrics_are_only_read():
    assert MetricsView.as_view()(RequestFactory().post("/metrics")).status_code == 405


def test_a_database_that_does_not_answer_is_unavailable(monkeypatch):
    def fail(*args, **options):
        raise OperationalError("the password is hunter2")

    monkeypatch.setattr(collecting, "queues", fail)
    response = scrape(user=User(is_staff=True))
    assert (response.status_code, response.content) == (503, b"The database does not answer.\n")


# What a worker counts


@pytest.fixture
def counted():
    """Metrics in a registry of their own, and a way to read them."""
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    metrics.value = lambda name, **labels: registry.get_sample_value(name, labels)
    return metrics


def ended(queue="q", *, ran=2.0, waited=timedelta(seconds=5), in_pool=1.0, type="t"):
    now = timezone.now()
    run = Run(Job(type=type, queue=queue, enqueued_at=now - waited, started_at=now))
    run.started_at = run.claimed_at + in_pool
    run.ended_at = run.started_at + ran
    return run


def test_runs_are_counted_and_timed(counted):
    counted.claimed([Job(queue="q"), Job(queue="q")])
    counted.finalized(ended(), Finalized.COMPLETED)
    counted.finalized(ended(), Finalized.REFUSED)
    counted.requeued(3)
    assert counted.value("ojs_worker_claimed_jobs_total", queue="q") == 2
    assert counted.value("ojs_worker_runs_total", type="t", queue="q", outcome="completed") == 1
    assert counted.value("ojs_worker_runs_total", type="t", queue="q", outcome="refused") == 1
    assert counted.value("ojs_worker_requeued_jobs_total") == 3
    assert counted.value("ojs_worker_run_duration_seconds_sum", type="t") == pytest.approx(4)
    assert counted.value("ojs_worker_wait_seconds_sum", queue="q") == pytest.approx(12)


@pytest.mark.every_database
@pytest.mark.django_db(transaction=True)
def test_what_was_claimed_has_run_or_was_requeued(counted, handlers):
    workers = [Worker(concurrency=1), Worker(concurrency=1)]
    job("t")(workers[0].stop)
    enqueue(*["q"] * 6)
    for one in workers:
        one.meter = counted
        one._threads._mean_seconds = 0.001  # so that it claims ahead
        one.run(drain=True)
    runs = counted.value("ojs_worker_runs_total", type="t", queue="q", outcome="completed")
    requeued = counted.value("ojs_worker_requeued_jobs_total")
    assert (runs, requeued > 0) == (6, True)
    assert counted.value("ojs_worker_claimed_jobs_total", queue="q") == runs + requeued


def test_a_wait_by_clocks_that_differ_is_not_negative(counted):
    counted.finalized(ended(waited=-HOUR, in_pool=0), Finalized.COMPLETED)
    assert counted.value("ojs_worker_wait_seconds_sum", queue="q") == 0


def test_callers_cannot_make_labels_without_end(counted, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.contrib.prometheus.worker.MOST_QUEUES", 2)
    counted.claimed([Job(queue=f"made-up-{number % 5}") for number in range(10)])
    assert counted.value("ojs_worker_claimed_jobs_total", queue="made-up-0") == 2
    assert counted.value("ojs_worker_claimed_jobs_total", queue="(others)") == 6


@pytest.fixture
def port():
    with reserved_port() as port:
        yield port


def scraped(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    assert all(family.documentation for family in families if family.name.startswith("ojs_"))
    return [sample for family in families for sample in family.samples]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_counts_what_becomes_of_its_runs(handlers, port):
    @job("t.good")
    def good():
        pass

    @job("t.skip")
    async def skip():
        raise Skip("nothing to do")

    @job("t.retry")
    def retry():
        raise Retry(after="PT1H")

    for handler in (good, good, skip, retry):
        handler.enqueue()
    with serving("127.0.0.1", port) as meter:
        worker = Worker(concurrency=1)
        worker.meter = meter
        worker.run(drain=True)
        samples = scraped(port)
    runs = {
        (sample.labels["type"], sample.labels["outcome"]): sample.value
        for sample in samples
        if sample.name == "ojs_worker_runs_total"
    }
    assert runs == {("t.good", "completed"): 2, ("t.skip", "skipped"): 1, ("t.retry", "retried"): 1}
    timed = {
        sample.labels["type"]: sample for sample in samples if sample.name == "ojs_worker_run_duration_seconds_count"
    }
    assert {type: sample.value for type, sample in timed.items()} == {"t.good": 2, "t.skip": 1, "t.retry": 1}
    assert sum(sample.value for sample in samples if sample.name == "ojs_worker_wait_seconds_count") == 4


def test_jobs_that_are_requeued_are_counted(counted, handlers):
    job("t")(lambda: None)
    for _ in range(3):
        Job.objects.enqueue("t")
    claiming = Claiming()
    claiming.meter = counted
    claiming.claim()
    claiming.requeue_all()
    assert counted.value("ojs_worker_requeued_jobs_total") == claiming.summary.requeued == 3


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_command_serves_metrics_while_it_runs(handlers, port):
    seen = []
    scrape_itself = job("t", queue="q")(lambda: seen.append(scraped(port)))
    for _ in range(2):  # the second one finds the port free, and nothing of the first
        scrape_itself.enqueue()
        call_command("runworker", drain=True, metrics_port=port, verbosity=0)
    for samples in seen:
        values = {sample.name: sample.value for sample in samples}
        assert values["ojs_worker_claimed_jobs_total"] == 1
        assert "python_info" in values  # whatever else this process registers is served, too
    assert len(seen) == 2


def test_a_port_that_is_taken_is_said_at_once(handlers):
    job("t")(lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"cannot listen on 127.0.0.1 port {number}"):
            call_command("runworker", metrics_port=number)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--metrics-port=0"], "--metrics-port: .*'0'"),
        (["--metrics-port=http"], "--metrics-port: .*'http'"),
        (["--metrics-port=9100", "--metrics-address=not an address"], "cannot listen on not an address"),
        (["--metrics-port=65535", "--processes=2"], "2 processes"),
    ],
)
def test_a_port_that_cannot_be_had_is_refused(options, problem):
    with pytest.raises(CommandError, match=problem):
        call_command("runworker", *options)


@pytest.mark.django_db(transaction=True)
def test_each_process_has_a_port_of_its_own(handlers, monkeypatch):
    ports = []

    class Inline:
        def __init__(self, count, work, *, once):
            self.run = lambda: [work(number) for number in range(count)] and 0

    monkeypatch.setattr("django_ojs_unique.management.commands.runworker.Supervisor", Inline)
    monkeypatch.setattr(
        "django_ojs_unique.management.commands.runworker.metered",
        lambda worker, options: nullcontext(ports.append(options["metrics_port"])),
    )
    monkeypatch.setattr("django_ojs_unique.management.commands.runworker.require_ports", lambda *args: None)
    job("t")(lambda: None)
    call_command("runworker", processes=2, drain=True, metrics_port=9100, verbosity=0)
    call_command("runworker", processes=2, drain=True, verbosity=0)
    assert ports == [9100, 9101, None, None]


def test_nothing_is_registered_but_while_a_worker_serves():
    assert [metric.name for metric in REGISTRY.collect() if metric.name.startswith("ojs_")] == []


def test_the_requests_in_the_inbox_are_counted_and_the_age_of_the_first_one_is_shown(gauge):
    assert [gauge("ojs_inbox_requests", state=state) for state in ("waiting", "refused")] == [0, 0]
    assert gauge("ojs_inbox_oldest_waiting_seconds") == 0
    now = timezone.now()
    InboxRequest.objects.create(type="t", requested_at=now - HOUR)
    InboxRequest.objects.create(type="t", requested_at=now)
    InboxRequest.objects.create(type="t", requested_at=now - 2 * HOUR, refused_at=now, error={"code": "x"})
    assert [gauge("ojs_inbox_requests", state=state) for state in ("waiting", "refused")] == [2, 1]
    assert 3600 <= round(gauge("ojs_inbox_oldest_waiting_seconds")) < 7200
