"""A project for the worker that is measured: everything as it is by default, on the database that the parent names."""

import json
import os

SECRET_KEY = "benchmark"
USE_TZ = True
INSTALLED_APPS = ["django_ojs_unique", "benchmarks"]
DATABASES = {"default": json.loads(os.environ["OJS_BENCHMARK_DATABASE"])}
