"""Settings on the database that ``SOAK_DATABASE`` describes in JSON, for producers and workers alike."""

import json
import os

SECRET_KEY = "soak"
USE_TZ = True
INSTALLED_APPS = ["django_ojs_unique", "tests.soak"]
DATABASES = {"default": json.loads(os.environ["SOAK_DATABASE"])}
SILENCED_SYSTEM_CHECKS = ["models.W036"]
OJS_UNIQUE = {
    "EVENTS": True,
    "RETENTION": dict.fromkeys(["completed", "cancelled", "discarded"], "PT2M"),
    "SUPPRESSED_RETENTION": "PT2M",
}
