"""S0-160..S0-167: how strong the promise is, said from what is really there."""

import pytest
from django.core.checks import Tags, run_checks
from django.db import connection, connections

from django_ojs_unique.db import capabilities
from django_ojs_unique.db.capabilities import unique_jobs
from django_ojs_unique.models import Job
from tests.support.jobs import HOUR, enqueue, outcome, stored

CONSTRAINT = next(constraint for constraint in Job._meta.constraints if constraint.name == "ojs_unique_key")


@pytest.fixture
def without_the_unique_key(transactional_db):
    """Really drop the constraint; a migration would bring it back."""
    with connection.schema_editor() as editor:
        editor.remove_constraint(Job, CONSTRAINT)
    capabilities.forget()
    yield
    Job.objects.all().delete()
    with connection.schema_editor() as editor:
        editor.add_constraint(Job, CONSTRAINT)
    capabilities.forget()


@pytest.mark.slow
@pytest.mark.parametrize(
    "alias", [pytest.param("default", id="S0-164-default"), pytest.param("other", id="S0-164-other")]
)
@pytest.mark.django_db(databases=["default", "other"])
def test_the_manifest_says_strong_and_by_which_mechanism(alias):
    declared = unique_jobs(Job, alias)
    assert set(declared) == {"strength", "mechanism"}
    assert declared["strength"] == "strong"
    assert "unique index" in declared["mechanism"]
    assert ("generated column" in declared["mechanism"]) is (connections[alias].vendor == "mysql")


@pytest.mark.parametrize("alias", [pytest.param("default", id="S0-165")])
def test_the_strength_is_computed_for_each_database_from_what_is_there(alias, without_the_unique_key):
    assert unique_jobs(Job, alias)["strength"] == "best-effort"


@pytest.mark.slow
@pytest.mark.parametrize("there", [pytest.param(True, id="S0-165-back")])
def test_a_constraint_that_is_back_is_believed_after_forget(there, transactional_db):
    unique_jobs(Job, "default")
    with connection.schema_editor() as editor:
        editor.remove_constraint(Job, CONSTRAINT)
    try:
        assert unique_jobs(Job, "default")["strength"] == "strong"  # remembered
        capabilities.forget()
        assert unique_jobs(Job, "default")["strength"] == "best-effort"
    finally:
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, CONSTRAINT)
        capabilities.forget()
    assert (unique_jobs(Job, "default")["strength"] == "strong") is there


@pytest.mark.parametrize("index", [pytest.param("CREATE INDEX", id="S0-165-plain-index")])
def test_an_index_of_that_name_that_is_not_unique_does_not_make_it_strong(index, without_the_unique_key):
    with connection.cursor() as cursor:
        cursor.execute(f"{index} ojs_unique_key ON {Job._meta.db_table} (fingerprint)")
    capabilities.forget()
    try:
        assert unique_jobs(Job, "default")["strength"] == "best-effort"
    finally:
        with connection.cursor() as cursor:
            on = f" ON {Job._meta.db_table}" if connection.vendor == "mysql" else ""
            cursor.execute(f"DROP INDEX ojs_unique_key{on}")


@pytest.mark.parametrize(
    "strategy", [pytest.param(s, id=f"S0-083-{s}") for s in ("replace", "replace_except_schedule")]
)
def test_a_best_effort_database_never_replaces_an_active_job(strategy, without_the_unique_key):
    stored("active")
    assert outcome(unique={"on_conflict": strategy}) == "rejected"


FEATURES = [
    ("reject", {}, {}, "rejected"),
    ("ignore", {}, {}, "deduplicated"),
    ("replace", {}, {}, "replaced"),
    ("replace_except_schedule", {}, {}, "replaced"),
    ("queue", {"keys": ["queue"]}, {"queue": "other"}, "created"),
    ("args", {"keys": ["args"]}, {"args": {"a": 1, "b": 3}}, "created"),
    ("args_keys", {"keys": ["args"], "args_keys": ["a"]}, {"args": {"a": 1, "b": 3}}, "rejected"),
    ("meta_keys", {"keys": ["meta"], "meta_keys": ["m"]}, {"meta": {"m": 1, "n": 3}}, "rejected"),
    ("period", {"period": "PT1H"}, {}, "rejected"),
    ("states", {"states": ["completed"]}, {}, "created"),
]


def check_feature(name, policy, change, expected):
    job = {"args": {"a": 1, "b": 2}, "meta": {"m": 1, "n": 2}}
    if expected in ("deduplicated", "replaced"):
        policy = {"on_conflict": name}
    enqueue("t", **job, unique=policy)
    assert outcome("t", **{**job, **change}, unique=policy) == expected


@pytest.mark.parametrize(
    ("name", "policy", "change", "expected"), [pytest.param(*f, id=f"S0-166-{f[0]}") for f in FEATURES]
)
@pytest.mark.django_db
def test_a_strong_database_has_every_feature(name, policy, change, expected):
    check_feature(name, policy, change, expected)


@pytest.mark.parametrize("features", [pytest.param(FEATURES, id="S0-166-best-effort")])
def test_a_best_effort_database_has_every_feature(features, without_the_unique_key):
    for feature in features:
        if feature[0] == "states":
            continue  # two rows of one key: without the promise nothing but their states keeps them apart
        Job.objects.all().delete()
        check_feature(*feature)


def test_a_best_effort_database_still_knows_the_end_of_a_window(without_the_unique_key, clock):
    enqueue(unique={"period": "PT1H"})
    clock.advance(HOUR)
    assert outcome(unique={"period": "PT1H"}) == "created"


@pytest.mark.slow
@pytest.mark.parametrize("check", [pytest.param("django_ojs_unique.W003", id="S0-167")])
def test_a_best_effort_database_says_what_it_does_not_promise(check, without_the_unique_key):
    assert "both be admitted" in unique_jobs(Job, "default")["mechanism"]
    warned = [message for message in run_checks(tags=[Tags.database], databases=["default"]) if message.id == check]
    assert len(warned) == 1
    assert "both be admitted" in warned[0].msg


@pytest.mark.django_db
def test_a_strong_database_is_not_warned_about():
    ids = {message.id for message in run_checks(tags=[Tags.database], databases=["default"])}
    assert "django_ojs_unique.W003" not in ids
