import io

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


def run(name="runworker", **options):
    out = io.StringIO()
    call_command(name, drain=True, stdout=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("name", ["runworker", "ojs_worker"])
def test_draining_an_empty_queue_says_so_and_ends(name):
    assert "0 completed" in run(name)


def test_the_report_counts_what_was_done_and_what_waits(handlers):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Job.objects.enqueue("t", scheduled_at=timezone.now() + timezone.timedelta(hours=1))
    Job.objects.enqueue("stranger")
    report = run()
    assert "1 completed" in report
    assert "1 job(s) wait for their time" in report
    assert "stranger" in report


def test_quiet_is_quiet(handlers):
    assert run(verbosity=0) == ""


@pytest.mark.parametrize("concurrency", ["0", "-1", "x"])
def test_a_concurrency_that_is_no_positive_number_is_refused(concurrency):
    with pytest.raises(CommandError, match="--concurrency"):
        call_command("runworker", "--drain", "--concurrency", concurrency)


def test_an_unknown_database_is_refused():
    with pytest.raises(CommandError, match="invalid choice"):
        call_command("runworker", "--database", "nowhere")


def test_a_database_without_the_migration_gets_one_clear_line():
    table = Job._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(Job, table, f"{table}_away")
    try:
        with pytest.raises(CommandError, match=r"manage\.py migrate --database default"):
            run()
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Job, f"{table}_away", table)


def test_an_app_without_handlers_gets_one_clear_line(handlers):
    for type in list(handlers):
        handlers.unregister(type)
    with pytest.raises(CommandError, match=r"@job"):
        run()
