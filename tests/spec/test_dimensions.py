"""S0-040..S0-061: what makes two jobs the same."""

import json
import os
import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from django_ojs_unique import UniquePolicy
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.models import Job
from django_ojs_unique.unique.fingerprint import canonical_text, fingerprint
from tests.support.jobs import enqueue, fresh, outcome

pytestmark = pytest.mark.django_db

ARGS = {"keys": ["args"]}
USER = {"keys": ["args"], "args_keys": ["user_id"]}
TENANT = {"keys": ["meta"], "meta_keys": ["tenant_id"]}


def case(id, policy, first, second, expected):
    return pytest.param(policy, first, second, expected, id=id)


def job(type="t", args=None, **rest):
    return {"type": type, "args": args, **rest}


@pytest.mark.parametrize(
    ("policy", "first", "second", "expected"),
    [
        case("S0-040", ARGS, job("a", {"x": 1}), job("b", {"x": 1}), "created"),
        case("S0-041-same", {"keys": ["queue"]}, job(queue="q"), job(queue="q", args={"x": 1}), "rejected"),
        case("S0-041-type", {"keys": ["queue"]}, job("a", queue="q"), job("b", queue="q"), "created"),
        case("S0-042", {"keys": ["type", "queue"]}, job(queue="q"), job(queue="r"), "created"),
        case("S0-043", {"keys": ["type"]}, job(queue="q"), job(queue="r"), "rejected"),
        case("S0-044", {"keys": ["queue"]}, job(), job(queue="default"), "rejected"),
        case("S0-044-other", {"keys": ["queue"]}, job(), job(queue="other"), "created"),
        case("S0-045-same", USER, job(args={"user_id": 1, "x": 1}), job(args={"user_id": 1, "x": 2}), "rejected"),
        case("S0-045-other", USER, job(args={"user_id": 1, "x": 1}), job(args={"user_id": 2, "x": 1}), "created"),
        case("S0-046", ARGS, job(args={"a": 1, "b": 1}), job(args={"a": 1, "b": 2}), "created"),
        case("S0-046-nested", ARGS, job(args={"a": [{"b": 1}]}), job(args={"a": [{"b": 2}]}), "created"),
        case("S0-046-list-order", ARGS, job(args=[1, 2]), job(args=[2, 1]), "created"),
        case("S0-046-more", ARGS, job(args={"a": 1}), job(args={"a": 1, "b": None}), "created"),
        case(
            "S0-047-same",
            TENANT,
            job(meta={"tenant_id": "a", "trace": 1}),
            job(meta={"tenant_id": "a", "trace": 2}),
            "rejected",
        ),
        case("S0-047-other", TENANT, job(meta={"tenant_id": "a"}), job(meta={"tenant_id": "b"}), "created"),
        case("S0-048", ARGS, job(meta={"tenant_id": "a"}), job(meta={"tenant_id": "b"}), "rejected"),
        case("S0-051", ARGS, job(args={"a": {"x": 1, "y": 2}}), job(args={"a": {"y": 2, "x": 1}}), "rejected"),
        case("S0-052-text", ARGS, job(args={"a": 42}), job(args={"a": "42"}), "created"),
        case("S0-052-true", ARGS, job(args={"a": True}), job(args={"a": 1}), "created"),
        case("S0-052-null", ARGS, job(args={"a": None}), job(args={}), "created"),
        case("S0-052-empty", ARGS, job(args={"a": []}), job(args={"a": {}}), "created"),
        case("S0-052-shape", ARGS, job(args=[]), job(args={}), "created"),
        case("S0-052-number", ARGS, job(args={"a": 1}), job(args={"a": 1.0}), "rejected"),
        case("S0-053-value", ARGS, job(args={"a": "e\u0301"}), job(args={"a": "\u00e9"}), "rejected"),
        case("S0-053-key", ARGS, job(args={"e\u0301": 1}), job(args={"\u00e9": 1}), "rejected"),
        case("S0-053-meta", TENANT, job(meta={"tenant_id": "e\u0301"}), job(meta={"tenant_id": "é"}), "rejected"),
    ],
)
def test_two_jobs_are_the_same_when_the_listed_dimensions_are_equal(policy, first, second, expected):
    enqueue(**first, unique=policy)
    assert outcome(**second, unique=policy) == expected


SEED = {"type": "email.send", "queue": "notifications", "args": {"user_id": 42, "template": "welcome"}}
SEED_POLICY = {"keys": ["type", "queue", "args"], "args_keys": ["user_id"]}


@pytest.mark.parametrize("unique", [pytest.param(SEED_POLICY, id="S0-049"), pytest.param(SEED_POLICY, id="S0-050")])
def test_the_seed_example_has_the_golden_text_and_key(unique):
    explanation = Job.objects.explain(**SEED, unique=unique)
    assert explanation.canonical_text == '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}'
    assert explanation.fingerprint == "71f9344b82e66297a49775bbe27752297922842b675330641ebe3ff4fea46c1f"
    assert enqueue(**SEED, unique=unique).job.fingerprint == explanation.fingerprint


@pytest.mark.parametrize("seed", [pytest.param(n, id=f"S0-051-{n}") for n in range(3)])
def test_insertion_order_never_matters_in_the_stored_key(seed):
    pairs = [(f"k{n}", {"b": n, "a": [n, {"d": 1, "c": 2}]}) for n in range(20)]
    key = enqueue("t", dict(pairs), unique=ARGS).job.fingerprint
    random.Random(seed).shuffle(pairs)
    assert Job.objects.explain("t", dict(pairs), unique=ARGS).fingerprint == key


@pytest.mark.parametrize("text", [pytest.param("e\u0301", id="S0-053-stored")])
def test_the_stored_args_stay_as_given(text):
    stored = fresh(enqueue("t", {text: text}, meta={text: text}, unique=ARGS).job)
    assert stored.args == stored.meta == {text: text}
    assert list(stored.args) == [text]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("args", {"e\u0301": 1, "\u00e9": 2}, id="S0-054"),
        pytest.param("args.a", {"a": {"e\u0301": 1, "\u00e9": 2}}, id="S0-054-nested"),
    ],
)
@pytest.mark.parametrize("unique", [None, ARGS])
def test_two_keys_that_are_equal_after_nfc_are_refused(field, value, unique):
    with pytest.raises(InvalidRequest) as caught:
        enqueue("t", value, unique=unique)
    assert caught.value.details["field"] == field


OUTSIDE_JSON = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "big": 2**53,
    "small": -(2**53),
    "float beyond what databases keep": 1e22,
    "surrogate": "\ud83d",
    "bytes": b"x",
    "set": {1},
    "decimal": Decimal("1"),
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "date": date(2026, 1, 1),
    "timedelta": timedelta(1),
    "uuid": UUID(int=0),
    "key": {1: 1},
    "nul": "\x00",
}


@pytest.mark.parametrize("where", ["args", "meta"])
@pytest.mark.parametrize("value", [pytest.param(v, id=f"S0-055-{name}") for name, v in OUTSIDE_JSON.items()])
def test_a_value_outside_json_is_refused_with_its_path(where, value):
    with pytest.raises(InvalidRequest) as caught:
        enqueue("t", **{where: {"a": [{"b": value}]}})
    assert caught.value.details["field"] == f"{where}.a[0].b"
    assert not Job.objects.exists()


@pytest.mark.parametrize("keys", [pytest.param({"\uff21": 1, "\U0001f600": 2}, id="S0-056")])
def test_astral_keys_sort_by_utf_16(keys):
    text = Job.objects.explain("t", keys, unique=ARGS).canonical_text
    assert text == '{"args":{"\U0001f600":2,"\uff21":1},"type":"t"}'


TRAVELLERS = {
    "text": {"a": "e\u0301", "😀": '\u2028\n\t"\\'},
    "numbers": {"a": [0, -1, 1.5, 1.0, -0.0, 1e-7, 5e-324, 0.1, 2**53 - 1, -(2**53) + 1]},
    "nested": {"z": [{}, [], None, True, {"b": {"a": [[1]]}}], "a": None},
    "array": [1, {"a": 2}],
}


@pytest.mark.parametrize("args", [pytest.param(args, id=f"S0-057-{name}") for name, args in TRAVELLERS.items()])
def test_a_job_that_was_read_back_from_the_database_still_has_its_key(args):
    stored = fresh(enqueue("t", args, unique=ARGS).job)
    again = outcome("t", stored.args, unique=ARGS)
    assert again == "rejected"
    text = canonical_text(stored.unique_policy, type="t", queue="default", args=stored.args, meta={})
    assert fingerprint(text) == stored.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"S0-057-hash-seed-{seed}") for seed in ("0", "1", "4242")])
def test_another_process_computes_the_same_key(seed):
    args = {"b": {"d": 1, "c": [2, {"z": "é", "a": 2}]}, "a": None}
    code = (
        "import json, sys\n"
        "from django_ojs_unique import UniquePolicy\n"
        "from django_ojs_unique.unique.fingerprint import canonical_text, fingerprint\n"
        "policy = UniquePolicy(keys={'args', 'queue', 'type'})\n"
        "print(fingerprint(canonical_text(policy, type='t', queue='default', args=json.loads(sys.argv[1]), meta={})))"
    )
    command = [sys.executable, "-c", code, json.dumps(args)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == enqueue("t", args, unique={"keys": ["queue", "args"]}).job.fingerprint


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"unique": {"period": "PT1H"}}, id="S0-058-period"),
        pytest.param({"unique": {"states": ["completed", "available"]}}, id="S0-058-states"),
        pytest.param({"unique": {"on_conflict": "ignore"}}, id="S0-058-on_conflict"),
        pytest.param({"unique": {}, "priority": 5}, id="S0-058-priority"),
        pytest.param({"unique": {}, "scheduled_at": datetime(2100, 1, 1, tzinfo=UTC)}, id="S0-058-schedule"),
        pytest.param({"unique": {}, "tags": ["a"]}, id="S0-058-tags"),
        pytest.param({"unique": {}, "retry": {"max_attempts": 9}, "timeout": 5}, id="S0-058-retry"),
    ],
)
def test_other_options_do_not_enter_the_key(options):
    key = enqueue().job.fingerprint
    assert Job.objects.explain("t", **options).fingerprint == key


@pytest.mark.parametrize("args", [pytest.param({"a": 1}, id="S0-060")])
def test_a_stored_job_without_a_policy_has_no_key_and_is_no_duplicate(args):
    enqueue("t", args, unique=None)
    assert outcome("t", args, unique=ARGS) == "created"
    assert outcome("t", args, unique=None) == "created"


@pytest.mark.parametrize("unique", [pytest.param({"period": "P1D", "on_conflict": "ignore"}, id="S0-061")])
def test_the_key_and_the_policy_are_stored_with_the_job(unique):
    stored = fresh(enqueue("t", unique=unique).job)
    assert stored.fingerprint == fingerprint('{"type":"t"}')
    assert stored.unique == UniquePolicy.parse(unique).to_dict()
    assert stored.unique_policy == UniquePolicy.parse(unique)
