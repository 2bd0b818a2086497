"""What a worker limits in its sessions, and resets."""

import pytest
from django.db import connection, transaction

from django_ojs_unique.db import session_limits
from django_ojs_unique.db.session_limits import LONGEST_IDLE, SessionLimits

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no sessions to limit"),
]

IS_POSTGRESQL = connection.vendor == "postgresql"
LOCKS = ["lock_timeout"] if IS_POSTGRESQL else ["innodb_lock_wait_timeout", "lock_wait_timeout"]
IDLE = "idle_in_transaction_session_timeout" if IS_POSTGRESQL else "idle_transaction_timeout"
SECOND = 1000 if IS_POSTGRESQL else 1


def put(name, seconds):
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {name} = {seconds * SECOND}")


def session():
    """Return the seconds that a statement may wait for each kind of lock, and that a transaction may be idle."""
    show = "SELECT setting FROM pg_settings WHERE name = '{}'" if IS_POSTGRESQL else "SELECT @@SESSION.{}"
    seconds = []
    with connection.cursor() as cursor:
        for name in (*LOCKS, IDLE):
            cursor.execute(show.format(name))
            seconds.append(int(cursor.fetchone()[0]) / SECOND)
    *locks, idle = seconds
    return locks, idle


@pytest.fixture(autouse=True)
def another_session():
    """Let each test begin with a session of its own, and the next one, too."""
    connection.close()
    yield
    connection.close()


def ours(lock_wait):
    return [lock_wait] * len(LOCKS), LONGEST_IDLE


def test_a_session_has_the_limits_until_the_end():
    before, limits = session(), SessionLimits("default", lock_wait=2)
    limits.ensure()
    assert session() == ours(2)
    limits.end()
    assert session() == before


def test_a_connection_that_was_opened_again_has_them_too():
    before, limits = session(), SessionLimits("default", lock_wait=2)
    limits.ensure()
    connection.close()
    assert session() == before
    limits.ensure()
    assert session() == ours(2)


def test_they_are_set_once_in_a_session(django_assert_num_queries):
    limits = SessionLimits("default", lock_wait=2)
    limits.ensure()
    with django_assert_num_queries(0):
        limits.ensure()


@pytest.mark.parametrize(("own", "stays"), [(1, True), (100, False)])
def test_only_a_shorter_limit_of_the_project_stays(own, stays):
    for name in (*LOCKS, IDLE):
        put(name, own)
    before, limits = session(), SessionLimits("default", lock_wait=2)
    limits.ensure()
    assert session() == (before if stays else ours(2))
    limits.end()
    assert session() == before


def test_without_a_lock_wait_statements_wait_as_before():
    locks, _ = session()
    SessionLimits("default").ensure()
    assert session() == (locks, LONGEST_IDLE)


def test_a_lock_wait_is_rounded_up():
    SessionLimits("default", lock_wait=1.0001).ensure()
    assert session() == ours(1.001 if IS_POSTGRESQL else 2)


def test_a_transaction_of_the_caller_may_be_idle():
    _, idle = session()
    with transaction.atomic():
        SessionLimits("default", lock_wait=2).ensure()
        assert session() == (ours(2)[0], idle)


@pytest.mark.skipif(not IS_POSTGRESQL, reason="only poolers of PostgreSQL are known")
def test_nothing_is_changed_behind_a_pooler(monkeypatch):
    before = session()
    monkeypatch.setattr(session_limits, "is_pooled", lambda connection: True)
    SessionLimits("default", lock_wait=2).ensure()
    assert session() == before


def test_a_limit_that_the_server_does_not_have_is_left_out(monkeypatch):
    """As MySQL has no limit of an idle transaction."""
    monkeypatch.setattr(session_limits, "_IDLE_TIMEOUTS", {connection.vendor: {"no_such_timeout": 1}})
    _, idle = session()
    limits = SessionLimits("default", lock_wait=2)
    limits.ensure()
    assert session() == (ours(2)[0], idle)
    limits.end()
