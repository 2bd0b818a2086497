"""S0-001..S0-034: what a policy may say, through `Job.objects.enqueue`."""

from datetime import timedelta

import pytest

from django_ojs_unique import DuplicateJob, InvalidPolicy, OnConflict, UniquePolicy
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.jobs import ALL_STATES, attempt, before_the_insert, columns, enqueue, live, outcome, put, stored

pytestmark = pytest.mark.django_db

ARGS = {"user_id": 1, "locale": "en"}
META = {"tenant_id": "acme"}


@pytest.mark.parametrize("unique", [pytest.param(None, id="S0-001")])
def test_without_a_policy_identical_jobs_are_both_created(unique):
    assert [outcome("t", ARGS, unique=unique) for _ in range(2)] == ["created", "created"]
    assert Job.objects.filter(fingerprint=None, unique__isnull=True).count() == 2


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param("reject", "rejected", id="S0-002-reject"),
        pytest.param("ignore", "deduplicated", id="S0-002-ignore"),
        pytest.param("replace", "replaced", id="S0-002-replace"),
        pytest.param("replace_except_schedule", "replaced", id="S0-002-replace_except_schedule"),
    ],
)
def test_the_check_and_the_insert_are_one_step_even_for_a_job_that_slips_in_between(strategy, expected):
    with before_the_insert(enqueue) as slipped_in:
        answer, job = attempt(unique={"on_conflict": strategy})
    assert answer == expected
    assert (job.pk == slipped_in[0].job.pk) is (expected != "replaced")
    assert live().count() == 1


@pytest.mark.parametrize("unique", [pytest.param({}, id="S0-003"), pytest.param(UniquePolicy(), id="S0-003-object")])
def test_an_empty_policy_is_type_only_and_rejects(unique):
    enqueue("t", {"a": 1}, unique=unique)
    assert outcome("t", {"a": 2}, queue="other", unique=unique) == "rejected"
    assert outcome("u", {"a": 1}, unique=unique) == "created"


SUBSETS = [[n for i, n in enumerate(("type", "queue", "args", "meta")) if bits & 1 << i] for bits in range(16)]


@pytest.mark.parametrize("keys", [pytest.param(keys, id=f"S0-004-{'+'.join(keys) or 'none'}") for keys in SUBSETS])
def test_any_subset_of_the_dimensions_is_accepted(keys):
    unique = {"keys": keys, "meta_keys": ["tenant_id"] if "meta" in keys else None}
    job = enqueue("t", ARGS, meta=META, unique=unique).job
    assert set(job.unique["keys"]) == {"type", *keys}
    assert outcome("t", ARGS, meta=META, unique=unique) == "rejected"


REFUSED = [
    pytest.param({"keys": ["argz"]}, "unique.keys[0]", id="S0-005"),
    pytest.param({"keys": ["Type"]}, "unique.keys[0]", id="S0-006"),
    pytest.param({"keys": ["args", "args"]}, "unique.keys", id="S0-008"),
    pytest.param({"keys": ["args"], "args_keys": ["absent"]}, "unique.args_keys", id="S0-010"),
    pytest.param({"keys": ["args"], "args_keys": ["user_id", "absent"]}, "unique.args_keys", id="S0-011"),
    pytest.param({"keys": ["meta"], "meta_keys": None}, "unique.meta_keys", id="S0-013-null"),
    pytest.param({"keys": ["meta"]}, "unique.meta_keys", id="S0-013-missing"),
    pytest.param({"keys": ["meta"], "meta_keys": []}, "unique.meta_keys", id="S0-013-empty"),
    pytest.param({"keys": ["meta"], "meta_keys": ["absent"]}, "unique.meta_keys", id="S0-015"),
    pytest.param({"args_keys": ["user_id"]}, "unique.args_keys", id="S0-016"),
    pytest.param({"keys": ["args"], "args_keys": []}, "unique.args_keys", id="S0-017"),
    *[
        pytest.param({"period": period}, "unique.period", id=f"S0-020-{period!r}")
        for period in ("1h", "pt1h", "", "P", 3600)
    ],
    *[
        pytest.param({"period": period}, "unique.period", id=f"S0-021-{period!r}")
        for period in ("PT", "PT0S", "P0D", "-PT1H", "+PT1H", "PT1H\n", "PT0,5S")
    ],
    *[
        pytest.param({"period": period}, "unique.period", id=f"S0-022-{period!r}")
        for period in ("P0.5M", "P1.5Y", "P1,5Y")
    ],
    *[
        pytest.param({"period": period}, "unique.period", id=f"S0-023-{period!r}")
        for period in ("P99999Y", "PT999999999999H", "P" + "9" * 400 + "D", "P999999999999W", timedelta.max)
    ],
    pytest.param({"states": ["running"]}, "unique.states[0]", id="S0-026"),
    pytest.param({"states": ["Active"]}, "unique.states[0]", id="S0-026-case"),
    pytest.param({"states": []}, "unique.states", id="S0-027"),
    *[
        pytest.param({"on_conflict": value}, "unique.on_conflict", id=f"S0-028-{value!r}")
        for value in ("raise", "Reject", "REPLACE", "replace-except-schedule", "", None)
    ],
    pytest.param({"keys": "type"}, "unique.keys", id="S0-029-keys"),
    pytest.param({"states": "active"}, "unique.states", id="S0-029-states"),
    pytest.param({"period": 5}, "unique.period", id="S0-029-period"),
    pytest.param(["type"], "unique", id="S0-029-list"),
    pytest.param(True, "unique", id="S0-029-true"),
    pytest.param({"key": ["type"]}, "unique.key", id="S0-030"),
    pytest.param({"keys": ["type"], "until": "start"}, "unique.until", id="S0-030-until"),
]


@pytest.mark.parametrize(("unique", "field"), REFUSED)
def test_an_invalid_policy_is_refused_with_the_field_named(unique, field):
    with pytest.raises(InvalidPolicy) as caught:
        enqueue("t", ARGS, meta=META, unique=unique)
    assert caught.value.code == "invalid_request"
    assert caught.value.details["field"] == field
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "unique",
    [
        pytest.param({"keys": ["argz"], "on_conflict": "replace"}, id="S0-031-parsing"),
        pytest.param({"keys": ["args"], "args_keys": ["absent"], "on_conflict": "replace"}, id="S0-031-job"),
    ],
)
def test_an_invalid_policy_stores_and_changes_nothing_and_sends_nothing(unique, received):
    before = columns(enqueue("t", ARGS).job)
    received.clear()
    with pytest.raises(InvalidPolicy):
        enqueue("t", ARGS, unique=unique)
    assert list(Job.objects.values()) == [before]
    assert not SuppressedEnqueue.objects.exists()
    assert received == []


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-032-{s}") for s in ALL_STATES])
def test_the_policy_error_wins_over_the_duplicate(state):
    put(enqueue("t", ARGS).job, state)
    with pytest.raises(InvalidPolicy):
        enqueue("t", ARGS, unique={"states": [state], "args_keys": ["x"]})


@pytest.mark.parametrize("keys", [pytest.param([], id="S0-007")])
def test_no_keys_mean_the_type(keys):
    first = enqueue("t", {"a": 1}, unique={"keys": keys}).job
    assert outcome("t", {"a": 2}, unique={"keys": ["type"]}) == "rejected"
    assert first.fingerprint == enqueue("t", unique={"states": ["completed"]}).job.fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(["queue", "args"], ["args", "type", "queue"], id="S0-008-order"),
        pytest.param(["queue", "args"], ["args", "queue"], id="S0-059"),
    ],
)
def test_the_order_of_names_never_matters(one, other):
    enqueue("t", ARGS, unique={"keys": one})
    assert outcome("t", ARGS, unique={"keys": other}) == "rejected"


@pytest.mark.parametrize(
    "policy",
    [pytest.param({}, id="S0-009-missing"), pytest.param({"args_keys": None}, id="S0-009-null")],
)
def test_without_args_keys_all_of_args_take_part(policy):
    unique = {"keys": ["args"], **policy}
    enqueue("t", ARGS, unique=unique)
    assert outcome("t", {**ARGS, "locale": "de"}, unique=unique) == "created"
    assert outcome("t", {"locale": "en", "user_id": 1}, unique=unique) == "rejected"


@pytest.mark.parametrize("value", [pytest.param(None, id="S0-012")])
def test_a_selected_null_takes_part(value):
    unique = {"keys": ["args"], "args_keys": ["user_id"]}
    enqueue("t", {"user_id": value}, unique=unique)
    assert outcome("t", {"user_id": value, "x": 1}, unique=unique) == "rejected"
    assert outcome("t", {"user_id": 0}, unique=unique) == "created"


ACCEPTED = [
    pytest.param({"meta_keys": []}, id="S0-014"),
    pytest.param({"period": None}, id="S0-018"),
    *[
        pytest.param({"period": period}, id=f"S0-019-{period}")
        for period in ("PT5M", "PT1H", "P1D", "P7D", "P1W", "PT1H30M", "PT0.5S")
    ],
    pytest.param({"period": "P1M"}, id="S0-022-month"),
    pytest.param({"period": "P1Y"}, id="S0-022-year"),
    *[pytest.param({"states": [state]}, id=f"S0-025-{state}") for state in ALL_STATES],
    pytest.param({"states": ALL_STATES}, id="S0-025-all"),
    *[pytest.param({"on_conflict": str(strategy)}, id=f"S0-028-{strategy}") for strategy in OnConflict],
]


@pytest.mark.parametrize("unique", ACCEPTED)
def test_a_valid_policy_is_accepted_and_kept_with_the_job(unique):
    job = enqueue("t", ARGS, meta=META, unique=unique).job
    job.refresh_from_db()
    kept = {name: job.unique[name] for name in unique}
    assert kept == {**unique, "meta_keys": None} if "meta_keys" in unique else unique
    assert job.unique_policy == UniquePolicy.parse(unique)


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-024-{s}") for s in ALL_STATES])
def test_the_default_states_are_those_that_are_not_terminal(state):
    stored(state)
    expected = "created" if state in ("completed", "cancelled", "discarded") else "rejected"
    assert outcome() == expected


SELECT_USER = {"keys": ["args"], "args_keys": ["user_id"]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"user_id": 1}, [{"user_id": 1, "x": 2}], id="S0-033-object-first"),
        pytest.param([{"user_id": 1}], {"user_id": 1, "x": 2}, id="S0-033-array-first"),
        pytest.param([{"user_id": 1}], [{"user_id": 1, "x": 2}], id="S0-033-arrays"),
        pytest.param(({"user_id": 1},), [{"user_id": 1, "x": 2}], id="S0-033-tuple"),
    ],
)
def test_args_keys_address_the_single_object_of_an_array(first, second):
    enqueue("t", first, unique=SELECT_USER)
    assert outcome("t", second, unique=SELECT_USER) == "rejected"


@pytest.mark.parametrize(
    "args",
    [
        pytest.param([], id="S0-033-empty"),
        pytest.param([1], id="S0-033-number"),
        pytest.param([{"user_id": 1}, {"user_id": 1}], id="S0-033-two"),
        pytest.param([[{"user_id": 1}]], id="S0-033-nested"),
    ],
)
def test_any_other_array_with_args_keys_is_refused(args):
    with pytest.raises(InvalidPolicy) as caught:
        enqueue("t", args, unique=SELECT_USER)
    assert caught.value.details["field"] == "unique.args_keys"


@pytest.mark.parametrize(
    ("declared", "given", "expected"),
    [
        pytest.param({"on_conflict": "ignore"}, {}, "deduplicated", id="S0-034-declared"),
        pytest.param({"on_conflict": "ignore"}, {"unique": {"on_conflict": "reject"}}, "rejected", id="S0-034-given"),
        pytest.param({"on_conflict": "ignore"}, {"unique": None}, "created", id="S0-034-none"),
    ],
)
def test_the_policy_of_the_call_wins_over_the_handlers(handlers, declared, given, expected):
    from django_ojs_unique import job

    job("t", unique=declared)(lambda: None)
    Job.objects.enqueue("t")
    try:
        answer = str(Job.objects.enqueue("t", **given).outcome)
    except DuplicateJob:
        answer = "rejected"
    assert answer == expected
