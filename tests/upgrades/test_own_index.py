"""A project's own index on the table of the jobs, as the documentation shows it."""

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from django_ojs_unique.models import Job
from tests.support.pages import ROOT

from .record import APP


@pytest.fixture
def migration():
    """The migration that the page has copied, as one of an app of the project."""
    namespace = {"__name__": "shop"}
    exec((ROOT / "examples/own_index.py").read_text(), namespace)
    return namespace["Migration"]("0002_jobs_by_type", "shop")


def indexes():
    with connection.cursor() as cursor:
        cursor.execute("SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid")
        return dict(cursor.fetchall())


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="CONCURRENTLY is PostgreSQL's")
@pytest.mark.django_db(transaction=True)
def test_an_index_is_added_beside_writers_and_removed_again(migration):
    state = MigrationLoader(connection).project_state()
    before = state.clone()
    Job.objects.enqueue("t")
    with connection.schema_editor(atomic=False) as editor:
        migration.apply(state, editor)
    assert indexes()["shop_job_by_type"] is True
    assert state.models[APP, "job"].options["indexes"] == before.models[APP, "job"].options["indexes"]
    with connection.schema_editor(atomic=False) as editor:
        migration.unapply(before, editor)
    assert "shop_job_by_type" not in indexes()
