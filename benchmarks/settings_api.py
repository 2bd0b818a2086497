"""A project with the HTTP API, open to all, so that no query authenticates; on the parent process's database."""

from .settings import *  # noqa: F403
from .settings import INSTALLED_APPS as MEASURED

ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "benchmarks.urls_api"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", *MEASURED]
_ALL = ["rest_framework.permissions.AllowAny"]
OJS_UNIQUE = {
    "API": {"AUTHENTICATION": [], "PERMISSIONS": {"producers": _ALL, "workers": _ALL}, "MAX_WAITING": 64},
}
