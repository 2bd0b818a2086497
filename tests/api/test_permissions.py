"""Who may call what: staff only by default, by group where the project says so (docs: security)."""

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client, override_settings
from rest_framework.authtoken.models import Token
from rest_framework.permissions import BasePermission
from rest_framework.throttling import UserRateThrottle

from django_ojs_unique.conf import API_DEFAULTS
from django_ojs_unique.models import Job

from .routes import VIEWS

GROUPS = tuple(API_DEFAULTS["PERMISSIONS"])
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class _Only(BasePermission):
    name = ""

    def has_permission(self, request, view):
        return request.user.username == self.name


class OnlyStatus(_Only):
    name = "status"


class OnlyProducers(_Only):
    name = "producers"


class OnlyWorkers(_Only):
    name = "workers"


class OnlyOperators(_Only):
    name = "operators"


class OncePerDay(UserRateThrottle):
    scope = "ojs"
    rate = "1/day"


def with_token(name, **options):
    """Return a client that sends the token of a user who is not logged in."""
    user, _ = User.objects.get_or_create(username=name, defaults=options)
    return Client(headers={"authorization": f"Token {Token.objects.get_or_create(user=user)[0].key}"})


def call(client, method, path):
    return client.generic(method, path, b"{}", content_type="application/json")


@pytest.mark.parametrize("path", VIEWS)
def test_the_anonymous_can_do_nothing(path, db, refused):
    for method in METHODS:
        answer = call(Client(), method, path)
        assert answer.status_code == 401
        if method != "HEAD":
            assert refused(answer, 401, "x_unauthenticated")["request_id"] == answer["X-Request-Id"]
        assert answer["WWW-Authenticate"]
    assert not Job.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", VIEWS)
def test_who_is_no_staff_can_do_nothing(path, db, refused):
    client = with_token("ada")
    for method in METHODS:
        answer = call(client, method, path)
        assert answer.status_code == 403
        if method != "HEAD":
            refused(answer, 403, "x_forbidden")
    assert not Job.objects.exists()


def test_nothing_is_said_of_routes_to_the_anonymous_that_do_not_exist(db, refused):
    for method in METHODS[:1] + METHODS[2:]:
        refused(call(Client(), method, "/ojs/v1/nothing"), 404, "not_found")


@pytest.mark.parametrize("view", VIEWS.values(), ids=lambda view: view.__name__)
def test_each_view_belongs_to_a_group(view):
    assert {view.group_of(method) for method in METHODS} <= set(GROUPS)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS.values(), ids=lambda view: view.__name__)
@pytest.mark.parametrize("group", [None, "", "public"])
def test_a_view_without_a_group_is_public_to_nobody(view, group, db, settings, monkeypatch):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {each: ["rest_framework.permissions.AllowAny"] for each in GROUPS}}}
    monkeypatch.setattr(view, "group", group)
    monkeypatch.setattr(view, "groups", {})
    path = next(path for path, each in VIEWS.items() if each is view)
    client = Client(raise_request_exception=False)
    assert {call(client, method, path).status_code for method in METHODS} == {500}
    assert not Job.objects.exists()


def test_a_group_that_is_left_out_or_empty_is_staff_only(db, settings, refused):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"status": [], "operators": [OnlyOperators]}}}
    for path in ("/ojs/manifest", "/ojs/v1/jobs"):
        refused(call(with_token("operators"), "POST", path), 403, "x_forbidden")
    assert with_token("staff", is_staff=True).get("/ojs/manifest").status_code == 200


def test_a_group_can_be_opened(db, settings, refused):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"status": ["rest_framework.permissions.AllowAny"]}}}
    assert Client().get("/ojs/v1/health").status_code == 200
    refused(call(Client(), "POST", "/ojs/v1/jobs"), 401, "x_unauthenticated")


def test_a_wrong_token_is_refused(db, refused):
    for credentials in ("Token x", "Token", "Token a b", "Token \xff"):
        client = Client(headers={"authorization": credentials})
        refused(client.get("/ojs/manifest"), 401, "x_unauthenticated")


def test_the_token_of_somebody_who_was_deactivated_is_refused(db, refused):
    client = with_token("staff", is_staff=True)
    User.objects.update(is_active=False)
    refused(client.get("/ojs/manifest"), 401, "x_unauthenticated")


def test_without_the_app_of_the_tokens_a_token_is_no_credential(db, settings, refused):
    client = with_token("staff", is_staff=True)
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "rest_framework.authtoken"]
    refused(client.get("/ojs/manifest"), 401, "x_unauthenticated")


def test_the_authentication_is_what_the_project_says(db, settings, refused):
    settings.OJS_UNIQUE = {"API": {"AUTHENTICATION": ["rest_framework.authentication.SessionAuthentication"]}}
    refused(with_token("staff", is_staff=True).get("/ojs/manifest"), 401, "x_unauthenticated")


def test_the_permissions_that_a_project_gives_its_own_views_do_not_open_ours(db, refused):
    with override_settings(
        REST_FRAMEWORK={
            "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
            "DEFAULT_AUTHENTICATION_CLASSES": [],
        }
    ):
        refused(call(Client(), "POST", "/ojs/v1/jobs"), 401, "x_unauthenticated")


def test_who_calls_too_often_is_told_when_to_come_back(db, settings, refused):
    cache.clear()
    settings.OJS_UNIQUE = {"API": {"THROTTLES": [f"{__name__}.OncePerDay"]}}
    client = with_token("staff", is_staff=True)
    assert client.get("/ojs/manifest").status_code == 200
    answer = client.get("/ojs/manifest")
    assert refused(answer, 429, "rate_limited")["retryable"] is True
    assert 0 < int(answer["Retry-After"]) <= 86_400
    assert with_token("other", is_staff=True).get("/ojs/manifest").status_code == 200
    cache.clear()
