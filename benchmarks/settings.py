"""A project for the measured worker: all settings by default, on the database that the parent process names."""

import json
import os

SECRET_KEY = "benchmark"
USE_TZ = True
INSTALLED_APPS = ["django_ojs_unique", "benchmarks"]
DATABASES = {"default": json.loads(os.environ["OJS_BENCHMARK_DATABASE"])}
