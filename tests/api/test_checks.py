"""The system checks of the API, and what is said where Django REST framework is missing (docs: checks)."""

import subprocess
import sys

import pytest
from django.core.checks import run_checks
from rest_framework.permissions import AllowAny

pytestmark = pytest.mark.django_db(databases="__all__")  # which the checks of the models ask
OPEN = "rest_framework.permissions.AllowAny"


class Open(AllowAny):
    """A permission of the project's own that asks nothing either."""


def found(id):
    return [message for message in run_checks() if message.id == f"django_ojs_unique.{id}"]


def test_an_api_that_is_open_to_everyone_is_warned_of(settings):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"producers": [OPEN], "operators": ["tests.api.test_checks.Open"]}}}
    (message,) = found("W005")
    assert "producers, operators" in message.msg
    assert "PERMISSIONS" in message.hint


@pytest.mark.parametrize(
    "permissions",
    [{}, {"status": [OPEN]}, {"producers": ["rest_framework.permissions.IsAuthenticated"]}],
    ids=["default", "status", "authenticated"],
)
def test_an_api_that_asks_who_calls_is_not_warned_of(permissions, settings):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": permissions}}
    assert found("W005") == []


def test_an_api_that_is_not_served_is_not_warned_of(settings):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"producers": [OPEN]}}}
    settings.ROOT_URLCONF = "tests.concurrency.urls"
    assert found("W005") == []
    del settings.ROOT_URLCONF
    assert found("W005") == []


def test_wrong_settings_are_said_once(settings):
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"producers": [OPEN, "nowhere.Permission"]}}}
    assert len(found("E001")) == 1
    assert found("W005") == []


@pytest.mark.slow
def test_without_django_rest_framework_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['rest_framework'] = None\n"
        "try: import django_ojs_unique.api.urls\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "(extra `api`): pip install djangorestframework" in said
