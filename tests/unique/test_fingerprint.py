import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_ojs_unique import InvalidPolicy, UniquePolicy
from django_ojs_unique.ojs.canonical import to_nfc
from django_ojs_unique.unique.fingerprint import canonical_text, fingerprint
from tests.support.json_values import NFC_TEXT, OBJECTS, VALUES, same_json, shuffled

SELECTED = UniquePolicy(keys=["args"], args_keys=["user_id"])


def text_of(policy, *, type="t", queue="default", args=None, meta=None):
    return canonical_text(
        UniquePolicy.parse(policy), type=type, queue=queue, args={} if args is None else args, meta=meta or {}
    )


VECTORS = [
    pytest.param(
        {"keys": ["type", "queue", "args"], "args_keys": ["user_id"]},
        {"type": "email.send", "queue": "notifications", "args": {"user_id": 42, "template": "welcome"}},
        '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}',
        "71f9344b82e66297a49775bbe27752297922842b675330641ebe3ff4fea46c1f",
        id="V1",
    ),
    pytest.param(
        {},
        {"type": "report.daily", "args": {"date": "2026-02-12"}},
        '{"type":"report.daily"}',
        "be66720bd0f961a37ab755101a985ca3f8563bd89ed8d412c41fa5791f3e4d95",
        id="V2",
    ),
    pytest.param(
        {"keys": ["type", "args"], "args_keys": ["user_id"]},
        {"type": "email.send_welcome", "args": {"user_id": 42, "locale": "en-US"}},
        '{"args":{"user_id":42},"type":"email.send_welcome"}',
        "9e45195404ccda2ec2e9597e9357ccbd01bbf6707d25aa92ab76d53b8795d74c",
        id="V3",
    ),
    pytest.param(
        {"keys": ["type", "args"], "args_keys": ["user_id", "event"]},
        {"type": "notification.push", "args": {"user_id": 42, "event": "new_comment"}},
        '{"args":{"event":"new_comment","user_id":42},"type":"notification.push"}',
        "77a2c3f3ec92c6565e8e9dbb06cbbc54506631efa84db7645e3d3708db9e25b7",
        id="V4",
    ),
    pytest.param(
        {"keys": ["type", "queue", "args"], "args_keys": ["image_id"]},
        {"type": "image.resize", "queue": "thumbnails", "args": {"image_id": "img_abc123"}},
        '{"args":{"image_id":"img_abc123"},"queue":"thumbnails","type":"image.resize"}',
        "642da782420b8a4fcdbcb63851e9f210a6becb96c2ca5e5d25ea129e08d57b08",
        id="V5",
    ),
    pytest.param(
        {"keys": ["type", "args", "meta"], "meta_keys": ["tenant_id"]},
        {"type": "cache.warm", "args": {"resource": "products"}, "meta": {"tenant_id": "acme", "trace": "x"}},
        '{"args":{"resource":"products"},"meta":{"tenant_id":"acme"},"type":"cache.warm"}',
        "dc19075d0e4dde8bcd3952c4f9789b50e959792aa308daaa8eae0daa9f1985b0",
        id="V6",
    ),
    pytest.param(
        {"keys": ["args"]},
        {"args": {"n": "e\u0301"}},
        '{"args":{"n":"\u00e9"},"type":"t"}',
        "71cefd07603db8703af01158b47e29bf2c6baefcff77401e9a58532501692f4e",
        id="V7",
    ),
    pytest.param(
        {"keys": ["args"]},
        {"args": {"n": 1.0}},
        '{"args":{"n":1},"type":"t"}',
        "36181eaefed9f15ef564744de5b0bee9609757ca955a16dbaf942c82849a47c9",
        id="V8-float",
    ),
    pytest.param(
        {"keys": ["args"]},
        {"args": {"n": 1}},
        '{"args":{"n":1},"type":"t"}',
        "36181eaefed9f15ef564744de5b0bee9609757ca955a16dbaf942c82849a47c9",
        id="V8-integer",
    ),
    pytest.param(
        {"keys": ["args"]},
        {"args": {"b": {"d": 1, "c": [2, {"z": 1, "a": 2}]}, "a": None}},
        '{"args":{"a":null,"b":{"c":[2,{"a":2,"z":1}],"d":1}},"type":"t"}',
        "992d167e086062977b1d745c0088bd55d567f9fc7f0e373bd665110950c6a34d",
        id="V9",
    ),
    pytest.param(
        {"keys": ["type", "queue", "args"], "args_keys": ["user_id"]},
        {"type": "email.send", "queue": "notifications", "args": {"user_id": "42", "template": "welcome"}},
        '{"args":{"user_id":"42"},"queue":"notifications","type":"email.send"}',
        "e8e4e24aec58e1d341131f85e937670538c4ea26375339815e022b7fd6e0d7f5",
        id="V10",
    ),
]


@pytest.mark.parametrize(("policy", "job", "text", "sha256"), VECTORS)
def test_golden_vectors(policy, job, text, sha256):
    assert text_of(policy, **job) == text
    assert fingerprint(text) == sha256


def test_the_type_always_takes_part():
    assert text_of({"keys": ["args"]}, type="a") != text_of({"keys": ["args"]}, type="b")


def test_dimensions_that_keys_does_not_list_take_no_part():
    assert text_of({}, queue="a", args={"x": 1}, meta={"y": 1}) == '{"type":"t"}'
    assert text_of({"keys": ["queue"]}, args=[1], meta={"y": 1}) == '{"queue":"default","type":"t"}'


def test_the_order_of_keys_and_names_in_the_policy_does_not_matter():
    one = {"keys": ["args", "meta", "type"], "args_keys": ["b", "a"], "meta_keys": ["d", "c"]}
    other = {"keys": ["type", "meta", "args"], "args_keys": ["a", "b"], "meta_keys": ["c", "d"]}
    job = {"args": {"a": 1, "b": 2, "x": 0}, "meta": {"c": 3, "d": 4, "x": 0}}
    assert text_of(one, **job) == text_of(other, **job)
    assert text_of(one, **job) == '{"args":{"a":1,"b":2},"meta":{"c":3,"d":4},"type":"t"}'


@pytest.mark.parametrize(
    "policy",
    [
        {"period": "PT1H"},
        {"states": ["completed"]},
        {"on_conflict": "replace"},
    ],
)
def test_period_states_and_strategy_take_no_part(policy):
    base = {"keys": ["args"]}
    assert text_of({**base, **policy}, args={"a": 1}) == text_of(base, args={"a": 1})


@pytest.mark.slow
@given(OBJECTS, VALUES, VALUES)
def test_members_that_args_keys_leaves_out_take_no_part(args, value, other):
    assume("user_id" not in args)
    assert text_of(SELECTED, args={**args, "user_id": value}) == text_of(SELECTED, args={"user_id": value, "x": other})


@pytest.mark.slow
@given(VALUES, VALUES)
def test_the_selected_member_decides(one, other):
    texts_agree = text_of(SELECTED, args={"user_id": one}) == text_of(SELECTED, args={"user_id": other})
    assert texts_agree == same_json(to_nfc(one), to_nfc(other))


@pytest.mark.slow
@given(OBJECTS, st.integers())
def test_args_keys_give_the_same_text_for_an_object_and_for_a_one_object_array(args, seed):
    assume(args)
    policy = UniquePolicy(keys=["args"], args_keys=sorted(args))
    assert text_of(policy, args=args) == text_of(policy, args=[shuffled(args, random.Random(seed))])


@pytest.mark.slow
@given(OBJECTS)
def test_without_args_keys_an_object_and_an_array_of_it_stay_different(args):
    policy = UniquePolicy(keys=["args"])
    assert text_of(policy, args=args) != text_of(policy, args=[args])


@pytest.mark.slow
@given(NFC_TEXT, NFC_TEXT)
def test_no_text_can_pretend_to_be_in_another_dimension(one, other):
    policy = UniquePolicy(keys=["type", "queue"])
    assert (text_of(policy, type=one, queue=other) == text_of(policy, type=other, queue=one)) == (one == other)


def test_every_string_of_the_text_is_in_nfc():
    policy = UniquePolicy(keys=["type", "queue", "args", "meta"], meta_keys=["cafe\u0301"])
    given_ = {
        "type": "e\u0301",
        "queue": "o\u0308",
        "args": {"a\u030a": ["n\u0303"]},
        "meta": {"cafe\u0301": "u\u0308"},
    }
    expected = '{"args":{"å":["ñ"]},"meta":{"café":"ü"},"queue":"ö","type":"é"}'
    assert text_of(policy, **given_) == expected


@pytest.mark.parametrize("name", ["caf\u00e9", "cafe\u0301"])
@pytest.mark.parametrize("key", ["caf\u00e9", "cafe\u0301"])
def test_names_and_keys_meet_in_nfc(name, key):
    policy = UniquePolicy(keys=["args"], args_keys=[name])
    assert text_of(policy, args={key: 1}) == '{"args":{"café":1},"type":"t"}'


def test_a_present_null_takes_part():
    assert text_of(SELECTED, args={"user_id": None}) == '{"args":{"user_id":null},"type":"t"}'


@pytest.mark.parametrize(
    ("policy", "job", "field", "said"),
    [
        (SELECTED, {"args": {"usr_id": 1}}, "unique.args_keys", "Did you mean 'usr_id'?"),
        (SELECTED, {"args": {}}, "unique.args_keys", "This job's args is empty."),
        (SELECTED, {"args": [{}]}, "unique.args_keys", "empty"),
        ({"keys": ["args"], "args_keys": ["a", "b"]}, {"args": {"a": 1}}, "unique.args_keys", "'b'"),
        ({"keys": ["meta"], "meta_keys": ["tenant"]}, {"meta": {"tenant_id": 1}}, "unique.meta_keys", "'tenant_id'"),
        ({"keys": ["meta"], "meta_keys": ["tenant"]}, {}, "unique.meta_keys", "This job's meta is empty."),
        (SELECTED, {"args": []}, "unique.args_keys", "exactly one object"),
        (SELECTED, {"args": [1]}, "unique.args_keys", "exactly one object"),
        (SELECTED, {"args": [[{"user_id": 1}]]}, "unique.args_keys", "exactly one object"),
        (SELECTED, {"args": [{"user_id": 1}, {"user_id": 1}]}, "unique.args_keys", "exactly one object"),
    ],
)
def test_a_policy_that_names_what_the_job_does_not_have_is_invalid(policy, job, field, said):
    with pytest.raises(InvalidPolicy) as caught:
        text_of(policy, **job)
    assert caught.value.details["field"] == field
    assert said in caught.value.message


# JSON Pointers


ORDER = {"customer": {"id": 7, "name": "Ada"}, "lines": [{"sku": "a"}, {"sku": "b"}], "a/b": 1, "c~d": 2, "": {"": 3}}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/customer/id", "7"),
        ("/customer", '{"id":7,"name":"Ada"}'),
        ("/lines/1/sku", '"b"'),
        ("/lines", '[{"sku":"a"},{"sku":"b"}]'),
        ("/a~1b", "1"),
        ("/c~0d", "2"),
        ("//", "3"),
        ("/", '{"":3}'),
        ("a/b", "1"),
        ("", '{"":3}'),
    ],
)
@pytest.mark.parametrize("shape", [dict, lambda order: [order]], ids=["object", "array of one"])
def test_a_name_that_starts_with_a_slash_points_into_the_args(pointer, value, shape):
    text = text_of({"keys": ["args"], "args_keys": [pointer]}, args=shape(ORDER))
    assert text == f'{{"args":{{"{pointer}":{value}}},"type":"t"}}'


def test_a_pointer_selects_and_leaves_the_rest_out():
    policy = {"keys": ["args"], "args_keys": ["/customer/id"]}
    other = {"customer": {"id": 7, "name": "Bob"}, "trace": "x"}
    assert text_of(policy, args=ORDER) == text_of(policy, args=other)
    assert text_of(policy, args=ORDER) != text_of(policy, args={"customer": {"id": "7"}})


def test_a_member_that_is_called_like_a_pointer_comes_first():
    args = {"/customer/id": 1, "customer": {"id": 2}}
    assert (
        text_of({"keys": ["args"], "args_keys": ["/customer/id"]}, args=args)
        == '{"args":{"/customer/id":1},"type":"t"}'
    )


def test_pointers_lead_into_the_meta_and_meet_in_nfc():
    policy = {"keys": ["meta"], "meta_keys": ["/caf\u00e9/id"]}
    assert text_of(policy, meta={"cafe\u0301": {"id": 1}}) == '{"meta":{"/café/id":1},"type":"t"}'


def test_null_at_the_end_of_a_pointer_takes_part():
    policy = {"keys": ["args"], "args_keys": ["/customer/id"]}
    assert text_of(policy, args={"customer": {"id": None}}) == '{"args":{"/customer/id":null},"type":"t"}'


@pytest.mark.parametrize(
    "pointer",
    [
        "customer/id", "/customer/age", "/customer/id/", "/customer/id/x", "/lines/2", "/lines/-1", "/lines/01",
        "/lines/-", "/lines/٢", "/lines/" + "9" * 100, "/lines/sku", "/customers/id", "/a/b", "/c~d",
        "#/customer/id", "///",
    ],
)  # fmt: skip
def test_a_pointer_that_leads_nowhere_is_an_invalid_policy(pointer):
    with pytest.raises(InvalidPolicy) as caught:
        text_of({"keys": ["args"], "args_keys": [pointer]}, args={**ORDER, "customer": {"id": 7}, "c~d": {}})
    assert caught.value.details["field"] == "unique.args_keys"
    assert "names a key that args does not have" in caught.value.message


# Windows


QUARTER = UniquePolicy(period="PT15M", window="fixed")
AT = datetime(2026, 2, 12, 15, 21, tzinfo=UTC)


def in_window(policy, at):
    return canonical_text(policy, type="t", queue="default", args={}, meta={}, at=at)


def test_a_fixed_window_takes_part():
    assert in_window(QUARTER, AT) == '{"type":"t","window":"2026-02-12T15:15:00Z/PT15M"}'
    assert in_window(QUARTER, AT) != in_window(QUARTER, AT + timedelta(minutes=9))
    assert in_window(QUARTER, AT) != in_window(UniquePolicy(period="PT5M", window="fixed"), AT)


@pytest.mark.parametrize("policy", [{"period": "PT15M"}, {"window": "retention"}, {"on_retry": "discard"}])
def test_other_windows_and_what_a_retry_does_take_no_part(policy):
    assert in_window(UniquePolicy.parse(policy), AT) == '{"type":"t"}'


def test_the_fingerprint_is_64_lower_case_hex_digits():
    digits = fingerprint('{"type":"t"}')
    assert len(digits) == 64
    assert set(digits) <= set("0123456789abcdef")
