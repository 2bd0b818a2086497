"""The settings of the example project: only for your own machine, never for a server."""

import os
from pathlib import Path

from .databases import database, sqlite_url

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = os.environ.get("SHOP_DEBUG") != "0"  # the demo turns it off: Django would note down each query
SECRET_KEY = "insecure-demo-key-do-not-use-it-anywhere-else"  # your project reads its own from the environment
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_ojs_unique",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": database(os.environ.get("DATABASE_URL") or sqlite_url(BASE_DIR / "db.sqlite3"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch"), ("he", "עברית")]  # as the browser asks
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
MEDIA_URL = "media/"
MEDIA_ROOT = BASE_DIR / "media"

# Mail goes into files, where you can read it.
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = MEDIA_ROOT / "mail"
DEFAULT_FROM_EMAIL = "shop@example.com"

# How long the example pretends to work on each size of a picture, so that there is time to replace a running job.
SHOP_SECONDS_PER_SIZE = 2.0
# And on each page of a catalogue, so that there is progress to watch.
SHOP_SECONDS_PER_PAGE = 1.0

OJS_UNIQUE = {
    # For clients that poll GET /ojs/v1/events.
    "EVENTS": True,
    # A day is enough for the charts, and keeps the database small.
    "RETENTION": {"completed": "PT25H", "cancelled": "PT25H", "discarded": "PT25H", "dead_letter": "P7D"},
    "SUPPRESSED_RETENTION": "PT25H",
    "WORKFLOW_RETENTION": "PT25H",
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "shop": {"handlers": ["console"], "level": "INFO"},
        # Quiet, as `serve` has jobs that fail on purpose, and pages that refresh themselves.
        "django_ojs_unique": {"handlers": ["console"], "level": os.environ.get("SHOP_LOG_LEVEL", "WARNING")},
        "django.server": {"handlers": ["console"], "level": "WARNING", "propagate": False},
    },
}
