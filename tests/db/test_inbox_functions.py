"""On PostgreSQL, who may call the functions of the inbox can enqueue, and nothing else."""

from contextlib import contextmanager
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import ProgrammingError, connection, transaction

from django_ojs_unique import job
from django_ojs_unique.db.inbox_functions import create_functions, drop_functions
from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import InboxRequest, Job, WorkerProcess
from django_ojs_unique.worker import poller
from tests.support.background import working
from tests.support.processes import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has the functions"),
]

NASTY = "'); DROP TABLE django_ojs_unique_inbox; -- $$ \\' %s"


def call(sql, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()[0] if cursor.description else None


@contextmanager
def role(*grants):
    """Act, within the block, as a new role that has these privileges only."""
    name = f"ojs_{uuid4().hex}"
    call(f"CREATE ROLE {name}")
    for grant in grants:
        call(f"GRANT {grant} TO {name}")
    try:
        with transaction.atomic():
            call(f"SET LOCAL ROLE {name}")
            yield
            call("RESET ROLE")
    finally:
        call(f"DROP OWNED BY {name}")
        call(f"DROP ROLE {name}")


EXECUTE = (
    "EXECUTE ON FUNCTION ojs_enqueue(text, jsonb, jsonb)",
    "EXECUTE ON FUNCTION ojs_remove(text, text)",
)


def refused(sql):
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
        call(sql)


def test_a_role_that_may_execute_enqueues_and_removes_and_can_do_nothing_else():
    with role(*EXECUTE):
        first = call("SELECT ojs_enqueue('mail', '{\"to\": 1}', options => '{\"key\": \"k\"}')")
        assert call("SELECT ojs_enqueue('mail')") > first
        call("SELECT ojs_remove('k')")
        call("SELECT ojs_remove(key => 'k', type => 'mail')")
        for table in ("django_ojs_unique_inbox", "django_ojs_unique_job"):
            for sql in (f"SELECT * FROM {table}", f"DELETE FROM {table}", f"UPDATE {table} SET type = 'x'"):
                refused(sql)
        refused("INSERT INTO django_ojs_unique_inbox (type) VALUES ('t')")
    assert inbox.decide(Job.objects.all()).count == 4
    assert [(each.type, each.args) for each in Job.objects.all()] == [("mail", [])]


def test_a_role_that_may_insert_needs_no_other_privilege():
    with role("INSERT (type, args, options) ON django_ojs_unique_inbox"):
        call("INSERT INTO django_ojs_unique_inbox (type) VALUES ('t')")
        refused("SELECT * FROM django_ojs_unique_inbox")
    assert inbox.decide(Job.objects.all()).count == 1


def test_nobody_else_may_execute_them():
    with role():
        refused("SELECT ojs_enqueue('t')")
        refused("SELECT ojs_remove('k')")


def test_no_argument_is_read_as_sql():
    call("SELECT ojs_enqueue(%s, jsonb_build_array(%s::text), jsonb_build_object('key', %s::text))", *[NASTY] * 3)
    call("SELECT ojs_remove(%s, %s)", NASTY, NASTY)
    enqueue, removal = InboxRequest.objects.order_by("pk")
    assert (enqueue.type, enqueue.args, enqueue.options) == (NASTY, [NASTY], {"key": NASTY})
    assert (removal.action, removal.type, removal.options) == ("remove", NASTY, {"key": NASTY})


def test_nothing_in_the_session_of_the_caller_takes_the_request():
    with transaction.atomic():
        call(
            "CREATE TEMP TABLE django_ojs_unique_inbox (id bigint, type text, args jsonb, options jsonb) ON COMMIT DROP"
        )
        call("CREATE FUNCTION pg_temp.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1 / 0'")
        call("SET LOCAL search_path = pg_temp, public")
        call("SELECT public.ojs_enqueue('t')")
    assert InboxRequest.objects.count() == 1


def test_they_live_in_the_schema_of_the_table_and_go_with_the_migration():
    with transaction.atomic():
        call('CREATE SCHEMA "Ten ant"')
        call('CREATE TABLE "Ten ant".django_ojs_unique_inbox (LIKE public.django_ojs_unique_inbox INCLUDING ALL)')
        call('SET LOCAL search_path = "Ten ant", public')
        with connection.schema_editor(atomic=False) as editor:
            create_functions(apps, editor)
            call("SELECT \"Ten ant\".ojs_enqueue('t')")
            assert call('SELECT count(*) FROM "Ten ant".django_ojs_unique_inbox') == 1
            assert call("SELECT count(*) FROM public.django_ojs_unique_inbox") == 0
            drop_functions(apps, editor)
        assert call("SELECT count(*) FROM pg_proc WHERE proname LIKE 'ojs\\_%%'") == 2
        transaction.set_rollback(True)


def test_a_call_wakes_an_idle_worker(handlers, monkeypatch):
    monkeypatch.setattr(poller, "LISTENING_POLL", 100_000)
    job("t")(lambda: None)
    with working() as worker:
        until(
            lambda: worker.listening and worker.is_idle and WorkerProcess.objects.exists(), "it listens and has looked"
        )
        call("SELECT ojs_enqueue('t')")
        until(Job.objects.filter(state="completed").exists, "the job has run")
