"""The pages of queues: pause, resume and limit, and who may."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_ojs_unique.models import Job, Queue
from tests.support.people import log_in

pytestmark = pytest.mark.django_db
LIST = "admin:django_ojs_unique_queue_changelist"


def form_url(name):
    return reverse("admin:django_ojs_unique_queue_change", args=[name])


def act(client, action, *names):
    """Use an action; return the messages."""
    answer = client.post(reverse(LIST), {"action": action, "_selected_action": names}, follow=True)
    assert answer.status_code == 200
    return [str(message) for message in answer.context["messages"]]


def save(client, name, limit, shown=None):
    """Save the form; return the answer. ``shown`` is the limit that the form had shown."""
    shown = Queue.objects.get(name=name).concurrency_limit if shown is None else shown
    return client.post(form_url(name), {"concurrency_limit": limit, "shown_limit": "" if shown is None else shown})


def errors(answer):
    """Return the messages of a form that was refused."""
    assert answer.status_code == 200
    return re.sub(r"<[^>]*>", "", " ".join(map(str, answer.context["errors"])))


def test_the_list_tells_pauses_limits_and_unfinished_jobs(admin_client):
    for _ in range(3):
        Job.objects.enqueue("email.send", queue="emails")
    Queue.objects.limit("emails", 4)
    Queue.objects.pause("reports")
    body = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", admin_client.get(reverse(LIST)).content.decode()))
    assert re.search(r"emails no 4 3 ", body)
    assert re.search(r"reports since \d+s ago none 0 ", body)


def test_names_are_shown_as_text(admin_client):
    Queue.objects.create(name="<script>alert(1)</script>\x1b")
    for url in (reverse(LIST), form_url("_3Cscript_3Ealert_281_29_3C_2Fscript_3E\x1b")):
        body = admin_client.get(url, follow=True).content.decode()
        assert "<script>alert" not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b" in admin_client.get(reverse(LIST)).content.decode()


def test_the_list_takes_the_same_number_of_statements_for_any_number_of_queues(
    admin_client, django_assert_max_num_queries
):
    for number in range(3):
        Queue.objects.limit(f"q{number}", 1)
        Job.objects.enqueue("email.send", queue=f"q{number}")
        with django_assert_max_num_queries(6):
            admin_client.get(reverse(LIST))


def test_queues_are_paused_and_resumed_counted_and_logged(client):
    log_in(client, "view_queue", "pause_queue")
    for name in "abc":
        Queue.objects.limit(name, 1)
    Queue.objects.pause("c")
    assert act(client, "pause", "a", "b", "c") == ["Paused 2 queues: a, b.", "Was paused already: c."]
    assert act(client, "resume", "a") == ["Resumed a."]
    assert act(client, "resume", "a") == ["Was not paused: a."]
    assert list(Queue.objects.exclude(paused_at=None).order_by("name").values_list("name", flat=True)) == ["b", "c"]
    logged = LogEntry.objects.order_by("pk").values_list("object_id", "change_message")
    assert list(logged) == [("a", "Paused."), ("b", "Paused."), ("a", "Resumed.")]


def test_a_queue_whose_name_is_none_is_refused_and_the_others_go_on(admin_client):
    Queue.objects.create(name="Not A Queue")
    Queue.objects.create(name="emails")
    refused, done = act(admin_client, "pause", "Not A Queue", "emails")
    assert "Did you mean 'not-a-queue'?" in refused
    assert done == "Paused emails."


def test_who_may_only_view_has_no_action_and_no_form(client):
    Queue.objects.create(name="emails")
    log_in(client, "view_queue")
    assert client.get(reverse(LIST)).context["action_form"] is None
    act(client, "pause", "emails")
    assert client.get(form_url("emails")).status_code == 200
    assert client.post(form_url("emails"), {"concurrency_limit": 3, "shown_limit": ""}).status_code == 403
    assert list(Queue.objects.values_list("paused_at", "concurrency_limit")) == [(None, None)]


def test_who_may_change_queues_sets_limits_but_does_not_pause(client):
    Queue.objects.create(name="emails")
    log_in(client, "view_queue", "change_queue")
    assert client.get(reverse(LIST)).context["action_form"] is None
    assert save(client, "emails", "3").status_code == 302
    assert Queue.objects.get().concurrency_limit == 3
    assert LogEntry.objects.get().change_message == "Limited to 3."
    assert save(client, "emails", "").status_code == 302
    assert Queue.objects.get().concurrency_limit is None
    assert LogEntry.objects.first().change_message == "Took the limit away."


def test_who_may_not_view_queues_sees_none(client):
    Queue.objects.create(name="emails")
    log_in(client, "view_job")
    assert client.get(reverse(LIST)).status_code == 403
    assert client.get(form_url("emails")).status_code == 403


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("0", "A limit is at least 1. To stop the queue, pause it"),
        ("-3", "A limit is at least 1"),
        ("many", "Enter a whole number"),
        ("1.5", "Enter a whole number"),
        ("9" * 400, "less than or equal to 2147483647"),
        ("3\0", "Enter a whole number|Null characters"),
    ],
)
def test_a_limit_that_is_none_is_refused(admin_client, limit, said):
    Queue.objects.limit("emails", 5)
    assert re.search(said, errors(save(admin_client, "emails", limit)))
    assert Queue.objects.get().concurrency_limit == 5


def test_a_limit_that_was_changed_meanwhile_is_told_and_can_then_be_replaced(admin_client):
    Queue.objects.limit("emails", 5)
    refused = save(admin_client, "emails", "7", shown="3")
    assert "Limit: somebody else has changed it meanwhile to 5." in errors(refused)
    assert Queue.objects.get().concurrency_limit == 5
    form = refused.context["adminform"].form
    assert (form["concurrency_limit"].value(), form["shown_limit"].value()) == ("7", "5")
    assert save(admin_client, "emails", "7", shown=form["shown_limit"].value()).status_code == 302
    assert Queue.objects.get().concurrency_limit == 7


def test_saving_keeps_a_pause_that_came_meanwhile(admin_client):
    Queue.objects.limit("emails", 5)
    Queue.objects.pause("emails")
    assert save(admin_client, "emails", "7").status_code == 302
    assert Queue.objects.get().paused_at


def test_the_list_is_narrowed_to_what_is_paused_or_limited(admin_client):
    Queue.objects.limit("limited", 5)
    Queue.objects.pause("paused")
    for query, names in [
        ({"paused": "yes"}, ["paused"]),
        ({"paused": "no"}, ["limited"]),
        ({"limited": "yes"}, ["limited"]),
        ({"paused": "yes", "limited": "yes"}, []),
    ]:
        found = admin_client.get(reverse(LIST), query).context["cl"].result_list
        assert [row.name for row in found] == names


def test_queues_are_neither_added_nor_deleted(admin_client):
    Queue.objects.create(name="emails")
    assert admin_client.get(reverse("admin:django_ojs_unique_queue_add")).status_code == 403
    url = reverse("admin:django_ojs_unique_queue_delete", args=["emails"])
    assert admin_client.post(url, {"post": "yes"}).status_code == 403
    act(admin_client, "delete_selected", "emails")
    assert Queue.objects.exists()


def test_the_limit_per_second_is_shown_changed_and_checked_like_the_other(admin_client):
    Queue.objects.rate_limit("emails", 10)
    listed = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", admin_client.get(reverse(LIST)).content.decode()))
    assert re.search(r"emails no 10/s 0 ", listed)
    fields = {"concurrency_limit": "4", "shown_limit": "", "max_per_second": "20"}
    refused = admin_client.post(form_url("emails"), {**fields, "shown_rate": "5"})
    assert "Limit per second: somebody else has changed it meanwhile to 10." in errors(refused)
    assert admin_client.post(form_url("emails"), {**fields, "shown_rate": "10"}).status_code == 302
    assert list(Queue.objects.values_list("concurrency_limit", "max_per_second")) == [(4, 20)]
    assert LogEntry.objects.get().change_message == "Limited to 4. Limited to 20 per second."
    assert [row.name for row in admin_client.get(reverse(LIST), {"limited": "yes"}).context["cl"].result_list] == [
        "emails"
    ]
