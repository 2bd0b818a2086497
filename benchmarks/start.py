"""What the app adds to ``django.setup()``: CPU time, modules and memory, beside a bare project, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections import defaultdict

PROJECT = """
import resource, sys, time
began = time.process_time()
import django
from django.conf import settings
template = {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages", *sys.argv[1:]],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TEMPLATES=[template],
)
django.setup()
took = time.process_time() - began
ours = sum(name.split(".")[0] == "django_ojs_unique" for name in sys.modules)
print(took * 1000, ours, len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
IMPORT = """
import resource, sys, time
began = time.process_time()
if sys.argv[1:]:
    import django_ojs_unique
took = time.process_time() - began
ours = sum(name.split(".")[0] == "django_ojs_unique" for name in sys.modules)
print(took * 1000, ours, len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
GOAL = 0.2
"""What the app may add to a bare `django.setup()`; a machine decides how many milliseconds that is."""
ADMIN, OURS = ["django.contrib.sessions", "django.contrib.admin"], ["django_ojs_unique"]


def report(rounds: int) -> None:
    """Print what is added: to a project, to one with the admin, and by the import of the package alone."""
    for name, program, bare in (
        ("django.setup()", PROJECT, []),
        ("django.setup() with the admin", PROJECT, ADMIN),
        ("import django_ojs_unique", IMPORT, []),
    ):
        seen = defaultdict(list)
        for number in range(rounds + 1):
            for apps in (bare, [*bare, *OURS]):
                numbers = _run(program, apps)
                if number:  # the first turn writes bytecode
                    seen[len(apps)].append(numbers)
        (ms, _, modules, mb), (our_ms, ours, all_modules, our_mb) = (
            [statistics.median(column) for column in zip(*seen[count], strict=True)] for count in sorted(seen)
        )
        added = our_ms - ms
        judged = (
            f" ({added / ms:.2f}, goal {GOAL} {'met' if added <= GOAL * ms else 'MISSED'})"
            if program is PROJECT
            else ""
        )
        print(
            f"{name:<32} {ms:.0f} ms + {added:.0f} ms{judged}; modules {modules:.0f} + {all_modules - modules:.0f}"
            f" ({ours:.0f} of the package); memory + {our_mb - mb:.1f} MB",
            flush=True,
        )


def _run(program: str, arguments: list[str]) -> list[float]:
    command = [sys.executable, "-c", program, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return [float(number) for number in subprocess.check_output(command, text=True, env=environment).split()]
