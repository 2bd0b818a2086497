"""The test project on the database that ``OJS_TEST_DATABASE_URL`` names; without it, on SQLite in a file of its own."""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import dj_database_url

from tests.admin_settings import ADMIN_APPS, MIDDLEWARE, STATIC_URL, TEMPLATES  # noqa: F401 - they are settings

SECRET_KEY = "tests"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
ROOT_URLCONF = "tests.urls"
INSTALLED_APPS = [
    *ADMIN_APPS,
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_ojs_unique",
    "tests.app",
]
if find_spec("django_tasks_db"):
    INSTALLED_APPS.append("django_tasks_db")  # whose tasks are moved
if find_spec("django.tasks") or find_spec("django_tasks"):
    TASKS = {
        "default": {"BACKEND": "django_ojs_unique.tasks.OJSBackend", "QUEUES": []},
        "tries": {"BACKEND": "django_ojs_unique.tasks.OJSBackend", "OPTIONS": {"retry": {"max_attempts": 2}}},
        "other": {"BACKEND": "django_ojs_unique.tasks.OJSBackend", "OPTIONS": {"database": "other"}},
    }
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

_FILES = Path(tempfile.gettempdir()) / f"ojs-tests-{os.getpid()}"
_FILES.mkdir(exist_ok=True)


def _sqlite(name: str) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(_FILES / f"{name}.sqlite3"),
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",  # no test stops the machine
            "timeout": 30,
        },
        # A file, because other processes must see it.
        "TEST": {"NAME": str(_FILES / f"test_{name}.sqlite3")},
    }


_URL = os.environ.get("OJS_TEST_DATABASE_URL")
DATABASES = {
    "default": dj_database_url.parse(_URL) if _URL else _sqlite("default"),
    # A second database, for `using()` and routers.
    "other": _sqlite("other"),
}
