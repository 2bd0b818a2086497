"""``manage.py jobs index-args``: what builds the index for searches in the args, and what the searches do with it."""

import io
import json

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection

from django_ojs_unique.db.args_index import ARGS_INDEX, args_index_sql, has_args_index
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.search import readings
from tests.support.rows import insert, insert_all

pytestmark = pytest.mark.every_database

ON_POSTGRES = connection.vendor == "postgresql"
on_postgres = pytest.mark.skipif(not ON_POSTGRES, reason="only PostgreSQL has this index")


def index_args(*arguments):
    out = io.StringIO()
    call_command("jobs", "index-args", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def members(term):
    """Return how a term that names a member is read."""
    (reading,) = [one for one in [*readings(term, "default")][1:-1] if "queue" not in str(one.select)]
    return reading


@pytest.fixture
def no_index(transactional_db):
    yield
    if ON_POSTGRES:
        index_args("--drop")


@on_postgres
def test_a_search_reads_the_index_once_it_is_there(no_index):
    insert_all(Job(type="email.send", queue="default", args={"user": {"id": number}}) for number in range(3000))
    assert not members("user.id=7").by_index
    assert "The index is there" in index_args()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_ojs_unique_job")
    reading = members("user.id=7")
    found = reading.select(Job.objects.all())
    assert reading.by_index
    assert [job.args for job in found] == [{"user": {"id": 7}}]
    assert ARGS_INDEX in found.order_by("-pk")[:100].explain()


@on_postgres
def test_the_index_is_built_once_and_dropped_and_neither_checks_nor_migrations_mind(no_index):
    before = {message.id for message in run_checks(databases=["default"])}
    index_args()
    assert "already" in index_args()
    assert {message.id for message in run_checks(databases=["default"])} == before
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    assert "Dropped" in index_args("--drop")
    assert not has_args_index(Job, connection)
    assert "no such index" in index_args("--drop")


@on_postgres
def test_an_index_that_was_left_unfinished_is_not_used_and_built_anew(no_index):
    index_args()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{ARGS_INDEX}'::regclass")
    assert not members("user_id=7").by_index
    assert "The index is there: searches use it." in index_args()
    assert members("user_id=7").by_index


@on_postgres
@pytest.mark.django_db
def test_in_a_transaction_it_is_refused_and_the_sql_is_printed_anywhere():
    with pytest.raises(CommandError, match="outside of atomic"):
        index_args()
    assert index_args("--sql").splitlines() == [f"{statement};" for statement in args_index_sql(Job, connection)]
    answer = json.loads(index_args("--sql", "--drop", "--json"))
    assert answer == {"indexed": False, "sql": [f"DROP INDEX CONCURRENTLY IF EXISTS {ARGS_INDEX}"]}


@pytest.mark.skipif(ON_POSTGRES, reason="the other databases have no such index")
@pytest.mark.django_db
def test_another_database_says_that_it_has_none():
    with pytest.raises(CommandError, match="no index"):
        index_args()
    assert not members("user_id=7").by_index


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("term", "found"),
    [
        ("user_id=5", ["float", "number", "text"]),
        ("user_id=5.0", ["float", "number", *(["text"] if connection.vendor == "mysql" else [])]),
        ("args.deep.er=x y", ["deep"]),
        ("deep.1=b", ["array"]),
        ("paid=true", ["bool"]),
        ("none=null", ["bool", "null"]),
        ("deep.1=null", ["nulls"]),
        ("user_id=6", []),
    ],
)
def test_a_member_is_found_by_its_text_its_number_its_truth_or_as_null(term, found):
    for name, args in {
        "number": {"user_id": 5, "more": 1},
        "text": {"user_id": "5"},
        "float": {"user_id": 5.0},
        "null": {"none": "null"},
        "nulls": {"deep": [0, None]},
        "deep": {"deep": {"er": "x y", "more": 1}},
        "array": {"deep": ["a", "b"]},
        "bool": {"paid": True, "none": None},
        "one": {"paid": 1},
        "list": [{"user_id": 5}],
    }.items():
        insert(type=name, queue="default", args=args)
    selected = members(term).select(Job.objects.all())
    assert sorted(job.type for job in selected) == found
