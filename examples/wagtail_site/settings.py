"""Wagtail's index updates and the site's mails as jobs: see `TASKS`.

``SITE_FOLDER``: where mails and the SQLite database are; ``DATABASE_URL``: a database on PostgreSQL instead.
``WITHOUT_UNIQUE``, if it is set: no policies, to compare.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from django_ojs_unique import presets

FOLDER = Path(os.environ.get("SITE_FOLDER", Path(__file__).parent))
SECRET_KEY = "only for the example"
USE_TZ = True
INSTALLED_APPS = [
    "magazine",
    "django_ojs_unique",
    "wagtail.search",
    "wagtail",
    "modelcluster",
    "taggit",
    "django.contrib.auth",
    "django.contrib.contenttypes",
]
STATIC_URL = "/static/"
ROOT_URLCONF = "urls"
WAGTAIL_SITE_NAME = "Magazine"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MAILERS = {
    "default": {
        "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
        "OPTIONS": {"file_path": FOLDER / "mails"},
    }
}

if url := os.environ.get("DATABASE_URL"):
    INSTALLED_APPS += ["django.contrib.postgres"]  # for Wagtail's index
    parts = urlsplit(url)
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username or "",
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname or "",
            "PORT": parts.port or "",
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FOLDER / "site.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30, "init_command": "PRAGMA journal_mode=WAL"},
        }
    }

# The task reads the page when it runs: one waits, the newest, and a save during a run lets it run again.
newest_waits = presets.newest_waits()
POLICIES = {
    "modelsearch.*": newest_waits,
    "wagtail.*": newest_waits,
    # Readers hear of a page once an hour, however often it is published.
    "magazine.tasks.tell_readers": presets.throttle("PT1H"),
}
TASKS = {
    "default": {
        "BACKEND": "django_ojs_unique.tasks.OJSBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"unique": None if os.environ.get("WITHOUT_UNIQUE") else POLICIES},
    }
}
