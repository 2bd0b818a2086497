"""Settings on the database that ``OJS_TEST_WORKER_DATABASE`` describes in JSON."""

import json
import os

SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = ["django_ojs_unique", "tests.support.project"]
DATABASES = {"default": json.loads(os.environ["OJS_TEST_WORKER_DATABASE"])}
