import os
import subprocess
import sys

import pytest

FIXED = ["UniquePolicy", "OnConflict", "JobState", "RetryPolicy", "DuplicateJob", "InvalidPolicy", "job"]


def python(code):
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_name_is_exported(name):
    import django_ojs_unique

    assert name in django_ojs_unique.__all__


@pytest.mark.slow
def test_every_public_name_imports_without_a_configured_django():
    code = "from django_ojs_unique import *\nfrom django.conf import settings\nprint(settings.configured)"
    assert python(code) == "False"


@pytest.mark.slow
def test_a_handler_can_be_declared_and_called_without_a_configured_django():
    code = "from django_ojs_unique import *\n@job('a.b', unique={'period': 'P1D'})\ndef f(x): return x + 1\nprint(f(1))"
    assert python(code) == "2"


@pytest.mark.slow
def test_the_specification_imports_no_django():
    code = (
        "import pkgutil, sys, django_ojs_unique.ojs as ojs\n"
        "[__import__(f'{ojs.__name__}.{m.name}') for m in pkgutil.iter_modules(ojs.__path__)]\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'django'])"
    )
    assert python(code) == "[]"
