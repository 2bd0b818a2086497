"""The admin's list of requests in the inbox."""

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import InboxRequest, Job

pytestmark = pytest.mark.django_db

PAGE = "admin:django_ojs_unique_inboxrequest_changelist"


@pytest.fixture
def refused():
    InboxRequest.objects.create(type="mail", args={"secret": "nobody-sees"}, options={"delay": "soon"})
    inbox.decide(Job.objects.all())
    return InboxRequest.objects.get()


def act(client, action, row, **more):
    return client.post(reverse(PAGE), {"action": action, ACTION_CHECKBOX_NAME: row.pk, **more}, follow=True)


def test_an_empty_list_explains_itself(admin_client):
    assert "SQL inserts them" in admin_client.get(reverse(PAGE)).text


def test_a_request_is_shown_with_its_reason_and_without_what_is_redacted(admin_client, refused, settings):
    settings.OJS_UNIQUE = {"REDACT": ["secret"]}
    InboxRequest.objects.create(type="later")
    listed = admin_client.get(reverse(PAGE)).text
    assert "later" in listed
    assert "options.delay" in listed
    assert "later" not in admin_client.get(reverse(PAGE), {"state": "refused"}).text
    shown = admin_client.get(reverse("admin:django_ojs_unique_inboxrequest_change", args=[refused.pk])).text
    assert "options.delay" in shown
    assert "[redacted]" in shown
    assert "nobody-sees" not in listed + shown


def test_it_is_retried_and_deleted(admin_client, refused):
    assert "Retried: 1 request." in act(admin_client, "retry", refused).text
    assert InboxRequest.objects.waiting().exists()
    act(admin_client, "delete_selected", refused, post="yes")
    assert not InboxRequest.objects.exists()


def test_who_may_only_view_changes_nothing(client, refused):
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(*Permission.objects.filter(codename__in=["view_inboxrequest", "view_job"]))
    client.force_login(viewer)
    assert "options.delay" in client.get(reverse(PAGE)).text
    for action in ("retry", "delete_selected"):
        act(client, action, refused, post="yes")
    assert InboxRequest.objects.refused().exists()
