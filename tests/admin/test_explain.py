"""The form that explains an enqueue: it answers in words, names each mistake beside its field, and writes nothing."""

import json
from datetime import timedelta

import pytest
from django.test import override_settings
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy, job
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue
from tests.support.people import give, log_in

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:django_ojs_unique_explain")
HTML = "<script>alert(1)</script>"
BY_ARGS = '{"keys": ["type", "args"], "on_conflict": "ignore"}'


def ask(client, **fields):
    """Send the form; return the answer."""
    response = client.post(PAGE, {"type": "email.send", **fields})
    assert response.status_code == 200
    return response


def answer(client, **fields):
    response = ask(client, **fields)
    assert response.context["form"].errors == {}
    return response.context["answer"]


def errors(client, **fields):
    """Return the errors by field: the first of each."""
    response = ask(client, **fields)
    assert response.context["answer"] is None
    assert HTML not in response.content.decode()
    return {name: found[0] for name, found in response.context["form"].errors.items()}


def test_an_empty_form_asks_and_offers_the_registered_types(admin_client, handlers):
    @job("welcome.send")
    def welcome(): ...

    page = admin_client.get(PAGE)
    assert page.context["form"].errors == {}
    assert '<option value="welcome.send">' in page.content.decode()
    assert 'list="ojs-types"' in page.content.decode()


@pytest.mark.parametrize(
    ("on_conflict", "action", "words"),
    [
        ("reject", "reject", "The enqueue would be refused"),
        ("ignore", "ignore", "Nothing would be stored"),
        ("replace", "replace", "The existing job would give way"),
    ],
)
def test_the_answer_says_what_would_happen_and_names_the_duplicates(admin_client, on_conflict, action, words):
    existing = Job.objects.enqueue("email.send", {"user": 1}, unique={"keys": ["type", "args"]}).job
    policy = f'{{"keys": ["type", "args"], "on_conflict": "{on_conflict}", "period": "PT1H"}}'
    response = ask(admin_client, args='{"user": 1}', unique=policy)
    said = response.context["answer"]
    assert (said["name"], said["fingerprint"]) == (action, existing.fingerprint)
    assert said["action"].startswith(words)
    assert '{"args":{"user":1},"type":"email.send"}' in said["text"].replace("&quot;", '"')
    (duplicate,) = said["duplicates"]
    assert str(existing.pk) in duplicate["link"]
    assert "available" in duplicate["state"]
    assert "in 59m" in duplicate["until"]
    page = response.content.decode()
    assert reverse("admin:django_ojs_unique_job_change", args=[existing.pk]) in page
    assert reverse("admin:django_ojs_unique_duplicates_of", args=[existing.fingerprint]) in page


@pytest.mark.slow
def test_nothing_is_enqueued_and_nothing_recorded(admin_client):
    Job.objects.enqueue("email.send", unique={})
    before = list(Job.objects.values())
    for on_conflict in ("reject", "ignore", "replace"):
        answer(admin_client, unique=f'{{"on_conflict": "{on_conflict}"}}')
    answer(admin_client, type="other.type", key="k")
    assert list(Job.objects.values()) == before
    assert not SuppressedEnqueue.objects.exists()


def test_a_free_fingerprint_would_be_created(admin_client):
    response = ask(admin_client, unique=BY_ARGS)
    assert response.context["answer"]["name"] == "create"
    assert "No stored job counts as a duplicate now." in response.content.decode()


@pytest.mark.slow
def test_the_policy_of_the_handler_is_in_effect_unless_another_or_none_is_given(admin_client, handlers):
    @job("welcome.send", unique=UniquePolicy(on_conflict="ignore"))
    def welcome(): ...

    assert "ignore" in answer(admin_client, type="welcome.send")["policy"]
    assert "reject" in answer(admin_client, type="welcome.send", unique="{}")["policy"]
    assert answer(admin_client, type="welcome.send", unique=" null ")["policy"] == ""
    assert answer(admin_client, type="welcome.send", without_policy="on")["policy"] == ""


def test_a_policy_and_none_at_once_is_refused(admin_client):
    assert "unique" in errors(admin_client, unique="{}", without_policy="on")


def test_a_key_is_explained_with_its_mode_and_scope(admin_client):
    existing = Job.objects.enqueue("email.send", key="inbox", key_scope="global").job
    said = answer(admin_client, key="inbox", key_scope="global", key_mode="unsafe_dedupe")
    assert said["name"] == "ignore"
    assert str(existing.pk) in said["duplicates"][0]["link"]
    assert answer(admin_client, key="inbox")["name"] == "create"


def test_a_key_mode_without_a_key_is_refused_beside_its_field(admin_client):
    assert "has no effect without a key" in errors(admin_client, key_mode="preserve_run_at")["key_mode"]


def test_a_time_without_an_offset_is_in_the_projects_time_zone(admin_client):
    said = answer(admin_client, scheduled_at="2030-01-31 14:00", queue="emails")
    assert "datetime.fromisoformat(&#x27;2030-01-31T14:00:00+01:00&#x27;)" in said["code"]
    assert "Europe/Berlin" in ask(admin_client).content.decode()


@pytest.mark.parametrize("moment", ["tomorrow", "2030-13-01", "0001-01-01 00:00", "9999-12-31 23:59", "\x00", HTML])
def test_an_odd_time_is_told_or_borne(admin_client, moment):
    response = ask(admin_client, scheduled_at=moment)
    assert response.context["answer"] or "scheduled_at" in response.context["form"].errors


def test_a_delay_is_explained_or_refused_beside_its_field(admin_client):
    assert "delay=&#x27;PT10M&#x27;" in answer(admin_client, delay="PT10M")["code"]
    assert "is not an ISO 8601 duration" in errors(admin_client, delay="10m")["delay"]
    assert "cannot be combined" in errors(admin_client, delay="PT10M", scheduled_at="2030-01-31 14:00")["delay"]


def test_the_line_of_code_does_what_was_explained(admin_client):
    said = answer(
        admin_client, args='{"user": null, "ok": true}', meta='{"a": 1}', queue="q", unique="{}", key_mode="replace"
    )
    line = said["code"].split(">", 1)[1].rsplit("<", 1)[0]
    for escaped, plain in (("&#x27;", "'"), ("&quot;", '"')):
        line = line.replace(escaped, plain)
    assert line == (
        "Job.objects.enqueue('email.send', {'user': None, 'ok': True}, meta={'a': 1}, unique={}, queue='q')"
    )
    eval(line, {"Job": Job})
    assert Job.objects.get().fingerprint == said["fingerprint"]


def test_an_answer_can_be_linked(admin_client):
    first = ask(admin_client, args='{"user": "ü&="}', unique=BY_ARGS)
    linked = admin_client.get(first.context["link"])
    assert linked.context["answer"]["fingerprint"] == first.context["answer"]["fingerprint"]
    assert linked.context["form"]["args"].value() == '{"user": "ü&="}'


def test_an_answer_too_long_for_a_link_has_none(admin_client):
    response = ask(admin_client, args='{"text": "%s"}' % ("x" * 3000))
    assert response.context["link"] == ""
    assert "too long for a link" in response.content.decode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"user": 1,\r\n  oops}', "line 2, column 3"),
        ("\n\n{", "line 3, column 2"),
        ("{'user': 1}", "line 1, column 2"),
        ('{"price": NaN}', "NaN is not JSON"),
        ('{"price": [-Infinity]}', "-Infinity is not JSON"),
        ('{"a": {"user": 1, "user": 2}}', "the member 'user' twice"),
        ('{"x": 1, "<script>alert(1)</script>": 1, "<script>alert(1)</script>": 2}', "twice"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": ' * 101 + "1" + "}" * 101, "nested deeper than 100 levels"),
        ("[" + "9" * 5000 + "]", "too many digits"),
        ("[1e999]", "not a number that JSON can carry"),
        ("[9007199254740993]", "beyond 2^53-1"),
        ('["\\u0000"]', "U+0000"),
        ('["\x00"]', "line 1, column"),
        ('["\\ud800"]', "lone surrogate"),
        ("7", "must be an object (keyword arguments) or an array"),
        ('"<script>alert(1)</script>"', "must be an object"),
    ],
)
def test_a_mistake_in_args_is_told_beside_them(admin_client, text, problem):
    assert problem in errors(admin_client, args=text)["args"]


@pytest.mark.parametrize("letter", ["x", "€"])
def test_args_that_are_too_large_are_refused_with_the_limit(admin_client, letter):
    text = '{"text": "%s"}' % (letter * (1_100_000 // len(letter.encode())))
    assert "the limit is 1,048,576" in errors(admin_client, args=text)["args"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("7", "must be an object or a UniquePolicy"),
        ("[]", "must be an object or a UniquePolicy"),
        ('{"kyes": ["type"]}', "Did you mean 'keys'?"),
        ('{"keys": ["arg"]}', "unique.keys[0]"),
        ('{"keys": 7}', "must be a list of strings"),
        ('{"period": "1 hour"}', "unique.period"),
        ('{"states": []}', "unique.states"),
        ('{"on_conflict": {"a": 1}}', "unique.on_conflict"),
        ('{"\\u0000": 1}', "unique."),
        ('{"on_conflict": "<script>alert(1)</script>"}', "is not a known strategy"),
    ],
)
def test_a_mistake_in_the_policy_is_told_beside_it(admin_client, text, problem):
    assert problem in errors(admin_client, unique=text)["unique"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": "Not A Type"}, "type"),
        ({"type": HTML}, "type"),
        ({"type": "a" * 10_000}, "type"),
        ({"type": "a\x00b"}, "type"),
        ({"queue": HTML}, "queue"),
        ({"queue": "\x1b[31m"}, "queue"),
        ({"meta": "[]"}, "meta"),
        ({"meta": '{"a": "\\u0000"}'}, "meta"),
        ({"key": "k" * 513}, "key"),
        ({"key": "k", "unique": "{}"}, "key"),
        ({"key": "k", "key_mode": HTML}, "key_mode"),
        ({"key": "k", "key_scope": "all"}, "key_scope"),
    ],
)
def test_other_mistakes_are_told_beside_their_fields_too(admin_client, fields, field):
    found = errors(admin_client, **fields)
    assert list(found) == [field]
    assert "\x1b" not in found[field]


def test_a_mistake_is_tied_to_its_field_for_screen_readers(admin_client):
    page = ask(admin_client, args="{").content.decode()
    assert 'aria-invalid="true"' in page
    assert 'id="id_args_error"' in page
    assert 'aria-describedby="id_args_helptext id_args_error"' in page
    assert 'id="id_args_helptext"' in page


def test_an_unknown_type_is_warned_of_with_what_was_probably_meant(admin_client, handlers):
    @job("email.welcome")
    def welcome(): ...

    response = ask(admin_client, type="email.welcom", unique="{}")
    assert "Did you mean 'email.welcome'?" in response.context["answer"]["warnings"][0]
    without = answer(admin_client, type="email.welcom")
    assert "Did you mean 'email.welcome'?" in without["reason"]
    assert without["warnings"] == []


@override_settings(OJS_UNIQUE={"REQUIRE_HANDLER": True})
def test_an_unknown_type_is_an_error_where_handlers_are_required(admin_client):
    assert "has no registered handler" in errors(admin_client, type="email.welcom")["type"]


def test_a_paused_queue_is_what_the_job_would_wait_for(admin_client):
    Queue.objects.pause("letters")
    assert answer(admin_client, type="email.send", queue="letters")["waits"] == [
        "Queue letters is paused: no worker claims its jobs."
    ]
    assert answer(admin_client, type="email.send")["waits"] == []


@pytest.mark.slow
def test_many_duplicates_are_shown_in_part(admin_client):
    first = Job.objects.enqueue("email.send", unique={}).job
    for _ in range(24):
        Job._base_manager.filter(fingerprint=first.fingerprint).update(unique_states=frozenset(), state="scheduled")
        Job.objects.enqueue("email.send", unique={"states": ["active"]})
    Job.objects.update(created_at=timezone.now() - timedelta(hours=1))
    response = ask(admin_client, unique="{}")
    assert len(response.context["answer"]["duplicates"]) == 20
    assert "… and 5 more" in response.content.decode()


def test_what_is_sent_by_a_link_is_borne_like_a_form(admin_client):
    for query in (
        {"type": HTML, "args": "{"},
        {"type": "a", "unique": "\x00", "scheduled_at": "x"},
        {"type": ["a", "b"]},
    ):
        response = admin_client.get(PAGE, query)
        assert response.status_code == 200
        assert HTML not in response.content.decode()


def test_html_and_control_characters_in_a_valid_request_are_escaped(admin_client):
    Job.objects.enqueue("email.send", {"text": HTML}, unique=UniquePolicy(keys=["type", "args"]))
    page = ask(admin_client, args=json.dumps({"text": HTML, "\x1b[31m": 1}), unique=BY_ARGS, key="").content.decode()
    assert HTML not in page
    assert "\x1b" not in page


def test_only_who_may_view_jobs_may_ask(client):
    user = log_in(client)
    Job.objects.enqueue("email.send", unique={})
    for response in (client.get(PAGE), client.get(PAGE, {"type": "email.send"}), client.post(PAGE, {"type": "a"})):
        assert response.status_code == 403
    give(user, "view_job")
    assert client.get(PAGE, {"type": "email.send", "unique": "{}"}).context["answer"]["name"] == "reject"


def test_an_unsafe_key_mode_carries_a_warning(admin_client):
    response = ask(admin_client, type="t", key="k", key_mode="unsafe_dedupe")
    assert "can lose what the enqueue was about" in response.context["answer"]["warnings"][0]
