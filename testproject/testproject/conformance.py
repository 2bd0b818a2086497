"""The settings of ``make conformance``: a server that is open to everyone, for the cases of the Open Job Spec."""

import os

from .settings import *  # noqa: F403

ROOT_URLCONF = "testproject.conformance_urls"
ALLOWED_HOSTS = ["127.0.0.1"]
OJS_UNIQUE = {
    "EVENTS": True,
    "API": {
        "ARRAYS_ONLY": True,
        "AUTHENTICATION": [],
        "COMPATIBLE_CLIENTS": os.environ.get("COMPATIBLE_CLIENTS") != "0",
        "PERMISSIONS": {
            group: ["rest_framework.permissions.AllowAny"] for group in ("status", "producers", "workers", "operators")
        },
    },
}
SILENCED_SYSTEM_CHECKS = ["django_ojs_unique.W005"]  # it is open to everyone, on this machine
# Most of the cases make mistakes on purpose.
LOGGING["loggers"]["django.request"] = {"handlers": ["console"], "level": "ERROR", "propagate": False}  # noqa: F405
LOGGING["loggers"]["django_ojs_unique"]["level"] = "ERROR"  # noqa: F405
