"""The SQL of Graphile Worker's text on job keys, sentence by sentence, through the functions of the guide."""

from datetime import UTC, datetime

import pytest
from django.db import connection

from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import InboxRequest, Job
from tests.support.jobs import claim, put
from tests.support.pages import ROOT

from .tables import ON_POSTGRESQL, create

pytestmark = [pytest.mark.django_db, ON_POSTGRESQL]

LATER, LATEST = datetime(2099, 1, 1, tzinfo=UTC), datetime(2099, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)


@pytest.fixture(params=["beside Graphile Worker", "alone"], autouse=True)
def functions(request):
    if request.param == "beside Graphile Worker":
        create("graphile_worker")
    with connection.cursor() as cursor:
        cursor.execute((ROOT / "examples/moving/graphile_worker.sql").read_text())


def call(sql, *parameters):
    """Call, and decide what it asked for."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT graphile_worker.{sql}", parameters or None)
    inbox.decide(Job.objects.all())
    assert not InboxRequest.objects.exists(), InboxRequest.objects.values("error")


def add(payload, mode="replace", run_at=None, task="send_email", **more):
    names = "".join(f", {name} := %s" for name in more)
    call(
        f"add_job(%s, %s, job_key := 'k', job_key_mode := %s, run_at := %s{names})",
        *(task, payload, mode, run_at, *more.values()),
    )


def stored():
    return list(Job.objects.order_by("pk").values_list("args", "scheduled_at"))


def test_a_call_without_a_key_makes_a_new_job_each_time():
    for _ in range(2):
        call("""add_job('send_email', '{"count": 1}')""")
    call("add_job('send_welcome')")
    assert [(each.type, each.args) for each in Job.objects.order_by("pk")] == [
        ("send_email", {"count": 1}),
        ("send_email", {"count": 1}),
        ("email.welcome", {}),
    ]


def test_two_calls_with_one_key_are_one_job_with_the_last_payload():
    call("""add_job('send_email', '{"count": 1}', job_key := 'abc')""")
    call("""add_job('send_email', '{"count": 2}', job_key := 'abc')""")
    assert stored() == [({"count": 2}, None)]


def test_replace_takes_all_of_the_new_call_its_time_included():
    add('{"n": 1}', run_at=LATER, priority=5, max_attempts=7, flags=["a"])
    first = Job.objects.get()
    assert (first.priority, first.max_attempts, first.tags) == (-5, 7, ["a"])
    add('{"n": 2}', run_at=LATEST)
    again = Job.objects.get()
    assert (again.pk, again.args, again.scheduled_at, again.tags) == (first.pk, {"n": 2}, LATEST, [])


def test_preserve_run_at_takes_all_but_the_time_unless_an_attempt_has_failed():
    add('{"n": 1}', run_at=LATER)
    add('{"n": 2}', "preserve_run_at", LATEST)
    assert stored() == [({"n": 2}, LATER)]
    call("remove_job('k')")
    add('{"n": 1}')
    put(Job.objects.get(), "retryable")
    add('{"n": 3}', "preserve_run_at", LATEST)
    assert stored() == [({"n": 3}, LATEST)]


def test_unsafe_dedupe_changes_nothing():
    add('{"n": 1}', run_at=LATER)
    add('{"n": 2}', "unsafe_dedupe", LATEST)
    assert stored() == [({"n": 1}, LATER)]


def test_two_arrays_are_joined_and_an_object_replaces_one():
    for number in (1, 2):
        add(f'[{{"id": {number}}}]', "preserve_run_at", LATER)
    assert stored() == [([{"id": 1}, {"id": 2}], LATER)]
    add('{"n": 1}', run_at=LATER)
    assert stored() == [({"n": 1}, LATER)]


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_a_running_job_loses_its_key_and_a_new_one_is_made(mode):
    add("[1]")
    running = Job.objects.get()
    claim(running)
    add("[2]", mode)
    assert [(each.pk == running.pk, each.key, each.args) for each in Job.objects.order_by("pk")] == [
        (True, None, [1]),
        (False, "k", [2]),
    ]


def test_a_key_counts_within_its_task_as_for_what_is_enqueued_here():
    here = Job.objects.enqueue("send_email", {"n": 0}, key="k").job
    add('{"n": 1}')
    add('{"n": 2}', task="another")
    assert [(each.type, each.args) for each in Job.objects.order_by("pk")] == [
        ("send_email", {"n": 1}),
        ("another", {"n": 2}),
    ]
    assert Job.objects.get(type="send_email") == here


def test_a_key_counts_for_all_tasks_where_the_script_says_so():
    script = (ROOT / "examples/moving/graphile_worker.sql").read_text()
    assert script.count("-- 'key_scope'") == 1
    with connection.cursor() as cursor:
        cursor.execute(script.replace("-- 'key_scope'", "'key_scope'"))
    add('{"n": 1}')
    add('{"n": 2}', task="another")
    assert [each.type for each in Job.objects.all()] == ["another"]


def test_a_waiting_job_is_removed_and_a_running_one_loses_its_key():
    add('{"n": 1}')
    call("remove_job('k')")
    assert stored() == []
    call("remove_job('k')")
    add('{"n": 1}')
    claim(Job.objects.get())
    call("remove_job('k')")
    assert Job.objects.get().key is None


def test_many_are_added_in_their_order():
    call(
        "add_jobs(ARRAY["
        "('t', '[1]', NULL, NULL, NULL, 'k', NULL, NULL), ('u', '{}', NULL, NULL, 3, NULL, 1, '{a}'),"
        "('t', '[2]', NULL, NULL, NULL, 'k', NULL, NULL)]::graphile_worker.job_spec[])"
    )
    assert sorted((each.type, each.args) for each in Job.objects.all()) == [("t", [1, 2]), ("u", {})]


def test_jobs_of_one_queue_run_one_after_the_other():
    call("add_job('t', queue_name := 'one')")
    job = Job.objects.get()
    assert job.meta == {"queue_name": "one"}
    assert [(limit["name"], limit["running"], limit["key"]) for limit in job.limits] == [
        ("queue_name", 1, {"meta.queue_name": "one"})
    ]
