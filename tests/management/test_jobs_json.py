"""``manage.py jobs ... --json`` and ``--watch``: what programs read, and what a terminal shows again and again."""

import io
import json
import signal
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import OJSError, UniquePolicy, chain, job
from django_ojs_unique.management.commands import jobs as command
from django_ojs_unique.management.jobs import SUBCOMMANDS, show_system
from django_ojs_unique.models import CronJob, Job, Queue, WorkerProcess
from tests.support.pages import table as documented

pytestmark = pytest.mark.django_db

ONCE = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
MISSING = "01985f3e-7c1a-7000-8000-5a1d3b0c9e42"
NOON = timezone.now().replace(year=2026, month=1, day=31, hour=12, minute=0, second=0, microsecond=0)
CALLS = {
    "list": ["--type", "email.send"],
    "show": ["{id}"],
    "explain": ["email.send"],
    "duplicates": [],
    "cancel": ["{id}"],
    "retry": ["{id}", "--dry-run"],
    "enqueue-again": ["{id}", "--dry-run"],
    "release": ["{id}"],
    "remove": ["page-7"],
    "inbox": [],
    "queues": [],
    "workers": [],
    "crons": [],
    "workflows": [],
    "workflow": ["{workflow}"],
    "cancel-workflow": ["{workflow}"],
    "pause": ["default"],
    "resume": ["default"],
    "limit": ["default", "3"],
    "limits": [],
    "verify": [],
    "rekey": [],
    "index-args": ["--drop"],
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def separately(*arguments):
    """Return what a command says on standard output and on standard error, and its exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        call_command("jobs", *arguments, stdout=out, stderr=err)
    except SystemExit as end:
        code = end.code
    return out.getvalue(), err.getvalue(), code


def answer(*arguments):
    """Return the only line of standard output, read."""
    out, err, code = separately(*arguments, "--json")
    assert (err, code) == ("", 0)
    (line,) = out.splitlines()
    return json.loads(line)


def waiting(**options):
    """Enqueue a job that can be cancelled, retried and released."""
    return Job.objects.enqueue("email.send", {"to": "me"}, delay="PT1H", unique=ONCE, **options).job


@pytest.mark.parametrize("name", [each.name for each in SUBCOMMANDS])
def test_each_subcommand_prints_one_object_or_one_list(name):
    ids = {"id": waiting().pk, "workflow": chain({"type": "email.send", "delay": "PT1H"}).enqueue().pk}
    Job.objects.enqueue("page.index", key="page-7", delay="PT1H")
    assert isinstance(answer(name, *(each.format(**ids) for each in CALLS[name])), (dict, list))


def test_the_page_tells_what_each_prints():
    rows = documented("docs/operations.md", "with `--json`")
    assert {name for cell, _ in rows for name in cell.replace("`", "").split(", ")} == {one.name for one in SUBCOMMANDS}


def test_a_row_has_the_names_of_its_fields_and_no_secret():
    job = waiting(queue="emails", tags=["a"])
    Job._base_manager.filter(pk=job.pk).update(created_at=NOON, lease_token=uuid4())
    (listed,) = answer("list")
    shown = answer("show", str(job.pk))
    assert shown.pop("holds_unique_key") is True
    assert shown.pop("waits_for") == []
    assert shown.pop("still_runs") == ""
    assert listed == shown
    assert set(listed) == {field.attname for field in Job._meta.concrete_fields} - {"lease_token"}
    assert listed["id"] == str(job.pk)
    assert (listed["args"], listed["tags"], listed["state"]) == ({"to": "me"}, ["a"], "scheduled")
    assert listed["created_at"] == "2026-01-31T12:00:00Z"
    assert listed["unique_states"] == sorted(job.unique_states)
    assert (listed["replaced_by_id"], listed["finished_at"]) == (None, None)


def test_nothing_is_an_empty_list():
    assert [answer(name) for name in ("list", "queues", "workers", "crons", "workflows")] == [[]] * 5


def test_the_line_is_ascii_and_moves_no_cursor():
    Job.objects.enqueue("email.send", {"to": "\x1b[2J\x9b caf\u00e9 \u202e"})
    out, _, _ = separately("list", "--json")
    assert out.isascii()
    assert out.rstrip("\n").isprintable()
    assert json.loads(out)[0]["args"] == {"to": "\x1b[2J\x9b caf\u00e9 \u202e"}


def test_a_refusal_is_in_the_answer_and_the_error_is_the_last_line():
    job = waiting()
    out, err, code = separately("cancel", str(job.pk), MISSING, "--json")
    message = f"There is no job {MISSING} in database 'default'. It may have been pruned."
    assert json.loads(out) == {
        "count": 1,
        "refused": [{"id": MISSING, "message": message, "duplicate_id": None}],
    }
    first, last = err.splitlines()
    assert first == message
    assert json.loads(last) == {"error": {"message": "1 of 2 refused."}}
    assert code == 1


def test_a_retry_names_the_live_duplicate(handlers):
    old = waiting()
    Job._base_manager.filter(pk=old.pk).update(
        state="discarded", run_at=None, finished_at=timezone.now(), unique_states=frozenset()
    )
    new = waiting()
    out, _, code = separately("retry", str(old.pk), "--json")
    assert json.loads(out)["refused"][0]["duplicate_id"] == str(new.pk)
    assert code == 1


def test_an_error_has_the_code_and_the_details_of_the_http_api():
    out, err, code = separately("explain", "email.send", "--unique", '{"keys": ["typo"]}', "--json")
    assert (out, code) == ("", 1)
    with pytest.raises(OJSError) as raised:
        Job.objects.explain("email.send", unique={"keys": ["typo"]})
    error = raised.value
    assert json.loads(err) == {"error": {"code": error.code, "message": error.message, "details": error.details}}
    assert error.details


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["show", MISSING], 1), (["duplicates", "zz"], 1), (["cancel"], 2)],
    ids=["show", "duplicates", "cancel"],
)
def test_an_error_is_one_object_on_standard_error(arguments, code):
    out, err, ended = separately(*arguments, "--json")
    assert (out, ended) == ("", code)
    assert set(json.loads(err)["error"]) == {"message"}
    with pytest.raises(CommandError):
        call_command("jobs", *arguments, stderr=io.StringIO())


def test_a_missing_table_is_such_an_error(monkeypatch):
    def refuse(using):
        raise CommandError("no table")

    monkeypatch.setattr(command, "require_tables", refuse)
    assert json.loads(separately("list", "--json")[1]) == {"error": {"message": "no table"}}


def test_an_error_has_no_colour_on_a_terminal():
    err = Terminal()
    with pytest.raises(SystemExit):
        call_command(command.Command(stderr=err, force_color=True), "show", MISSING, "--json")
    assert json.loads(err.getvalue())["error"]


def test_a_dry_run_counts_and_changes_nothing():
    waiting()
    Job.objects.enqueue("email.send", {"to": "you"}, queue="slow")
    assert answer("cancel", "--type", "email.send", "--dry-run") == {
        "dry_run": True,
        "count": 2,
        "groups": [
            {"state": "scheduled", "queue": "default", "type": "email.send", "count": 1},
            {"state": "available", "queue": "slow", "type": "email.send", "count": 1},
        ],
    }
    assert answer("cancel", "--type", "email.send", "--dry-run", "--limit", "1")["count"] == 1
    nothing, said, code = separately("cancel", "--type", "nothing.here", "--dry-run", "--json")
    assert json.loads(nothing) == {"dry_run": True, "count": 0, "groups": []}
    assert said.startswith("No job matches.")
    assert code == 0
    assert not Job.objects.filter(state="cancelled").exists()


def test_a_change_by_filters_is_counted():
    waiting()
    assert answer("cancel", "--type", "email.send") == {"count": 1, "refused": []}
    Job._base_manager.update(state="discarded")
    assert answer("retry", "--type", "email.send") == {"count": 1, "refused": []}


def test_queues_have_their_counts_pause_and_limits():
    Job.objects.enqueue("email.send", queue="emails")
    Queue.objects.limit("emails", 4)
    assert answer("pause", "emails") == [{"name": "emails", "paused": True, "changed": True, "available": 1}]
    assert answer("pause", "emails")[0]["changed"] is False
    Queue.objects.update(paused_at=NOON)
    (emails,) = json.loads(separately("queues", "--json")[0])
    assert emails == {
        "name": "emails",
        "scheduled": 0,
        "available": 1,
        "pending": 0,
        "active": 0,
        "retryable": 0,
        "paused": True,
        "paused_at": "2026-01-31T12:00:00Z",
        "concurrency_limit": 4,
        "max_per_second": None,
        "is_stranded": True,
    }
    assert answer("resume", "emails")[0] == {"name": "emails", "paused": False, "changed": True, "available": 1}
    assert answer("limit", "emails", "2", "--per-second") == {"name": "emails", "max_per_second": 2, "changed": True}
    assert answer("limit", "emails", "none") == {"name": "emails", "concurrency_limit": None, "changed": True}


def test_warnings_go_to_standard_error():
    Job.objects.enqueue("email.send", queue="emails")
    out, err, code = separately("queues", "--json")
    assert json.loads(out)[0]["is_stranded"] is True
    assert "no worker runs" in err
    assert code == 0


def test_a_worker_has_its_standing():
    WorkerProcess.objects.create(id="w1", hostname="h", pid=7, queues=["*"], started_at=NOON, heartbeat_at=NOON)
    (worker,) = answer("workers")
    assert set(worker) == {field.attname for field in WorkerProcess._meta.concrete_fields} | {"standing"}
    assert (worker["id"], worker["state"], worker["standing"]) == ("w1", "running", "silent")
    assert worker["heartbeat_at"] == "2026-01-31T12:00:00Z"


def test_a_periodic_job_has_the_names_of_its_fields():
    CronJob.objects.create(name="nightly", expression="0 2 * * *", type="report", next_run_at=NOON)
    (entry,) = answer("crons")
    assert set(entry) == {field.attname for field in CronJob._meta.concrete_fields}
    assert entry["next_run_at"] == "2026-01-31T12:00:00Z"


def test_an_explanation_has_the_names_of_the_http_api():
    stored = waiting()
    explained = answer("explain", "email.send", "--args", '{"to": "me"}', "--unique", json.dumps(ONCE.to_dict()))
    assert (explained["action"], explained["unique_key"]) == ("ignore", stored.fingerprint)
    assert explained["unique"]["keys"] == ["type", "args"]
    assert "canonical_text" in explained
    (duplicate,) = explained["duplicates"]
    assert set(duplicate) == {"job_id", "state", "created_at", "until"}
    assert (duplicate["job_id"], duplicate["until"]) == (str(stored.pk), None)
    assert answer("explain", "email.send", "--unique", "null")["unique"] is None


def test_duplicates_are_told_with_their_jobs_and_attempts():
    stored = waiting()
    waiting()
    told = answer("duplicates")
    (met,) = told["suppressed"]
    names = "fingerprint type args count rejected deduplicated replaced last_at existing_job_id"
    assert list(met) == names.split()
    assert (met["fingerprint"], met["deduplicated"], met["existing_job_id"]) == (stored.fingerprint, 1, str(stored.pk))
    assert (told["groups"], told["more_groups"]) == ([], False)
    one = answer("duplicates", str(stored.pk))
    assert [each["id"] for each in one["jobs"]] == [str(stored.pk)]
    assert [each["existing_job_id"] for each in one["suppressed"]] == [str(stored.pk)]
    assert (one["fingerprint"], one["more"]) == (stored.fingerprint, False)
    twin = Job.objects.enqueue("email.send", {"to": "me"}).job
    Job._base_manager.filter(pk=twin.pk).update(fingerprint=stored.fingerprint)
    (group,) = answer("duplicates")["groups"]
    assert {each["id"] for each in group["jobs"]} == {str(stored.pk), str(twin.pk)}
    assert (group["fingerprint"], group["more"]) == (stored.fingerprint, 0)


@pytest.mark.slow
def test_verify_tells_what_it_found_and_what_it_fixed():
    job = waiting()
    assert answer("verify") == {"looked_at": 1, "fixed": 0, "findings": []}
    Job._base_manager.filter(pk=job.pk).update(fingerprint="0" * 64)
    out, err, code = separately("verify", "--json")
    (finding,) = json.loads(out)["findings"]
    assert (finding["kind"], finding["count"], finding["job_ids"]) == ("fingerprint", 1, [str(job.pk)])
    assert finding["problem"]
    assert json.loads(err.splitlines()[-1])["error"]["message"].startswith("1 to fix")
    assert code == 1
    assert answer("verify", "--fix") == {"looked_at": 1, "fixed": 1, "findings": []}


def test_rekey_tells_what_it_did(handlers):
    misfit = Job.objects.enqueue("email.send", {"to": "me"}).job
    Job.objects.enqueue("email.send", {"user": 1})

    @job("email.send", unique=UniquePolicy(keys=["type", "args"], args_keys=["user"]))
    def send(user):
        pass

    told = answer("rekey", "--dry-run")
    assert (told["looked_at"], told["rekeyed"], told["misfit_count"], told["dry_run"]) == (2, 1, 1, True)
    ((named,), cancelled) = told["misfits"], told["cancelled"]
    assert (named["id"], cancelled) == (str(misfit.pk), [])
    assert "user" in named["problem"]


# --watch


@pytest.fixture
def rounds(monkeypatch):
    """How long each pause of a watch is asked to be; Ctrl-C is pressed in the third."""
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(show_system, "sleep", pause)
    return pauses


@pytest.mark.parametrize("name", ["queues", "workers", "limits"])
def test_a_watch_shows_it_again_until_ctrl_c(name, rounds):
    out, _, code = separately(name, "--watch")
    assert out.count("Ctrl-C ends it.") == 3
    assert code == 0
    assert rounds == [2.0, 2.0, 2.0]
    assert "\x1b" not in out


def test_a_watch_shows_what_is_new(monkeypatch):
    def pause_the_queue(seconds):
        assert seconds == 0.5
        if not Queue.objects.pause("emails"):
            raise KeyboardInterrupt

    monkeypatch.setattr(show_system, "sleep", pause_the_queue)
    first, second = separately("queues", "--watch", "0.5", "--json")[0].splitlines()
    assert first == "[]"
    assert json.loads(second)[0]["paused"] is True


def test_a_terminal_is_cleared_before_each_round(rounds):
    out = Terminal()
    call_command("jobs", "queues", "--watch", stdout=out)
    first, *later = out.getvalue().split("\x1b[2J\x1b[H")
    assert first == ""
    assert len(later) == 3
    assert all("No queue has" in each for each in later)


def test_a_watch_for_programs_prints_one_line_per_round(rounds):
    out = Terminal()
    call_command("jobs", "queues", "--watch", "--json", stdout=out)
    assert out.getvalue() == "[]\n" * 3


def test_a_watch_asks_as_little_as_one_look(rounds):
    Job.objects.enqueue("email.send", queue="emails")
    with CaptureQueriesContext(connection) as once:
        separately("queues")
    with CaptureQueriesContext(connection) as thrice:
        separately("queues", "--watch")
    assert len(looks(thrice)) == 3 * len(looks(once))


def looks(queries):
    """Return the queries of our tables; the migrations are read once for each command."""
    return [query for query in queries if '"django_ojs' in query["sql"] and "migrations" not in query["sql"]]


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "0.01"])
def test_a_senseless_pause_is_refused(seconds):
    with pytest.raises(CommandError, match="--watch"):
        call_command("jobs", "queues", "--watch", seconds)
