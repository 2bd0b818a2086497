"""A whole project: enqueue its tasks, run them, print what became of them.

Arguments: a file for the database, the backend, an app that it needs or ``-``, and a worker command if it has one.
"""

from __future__ import annotations

import json
import logging
import sys

import django
from django.conf import settings
from django.core.management import call_command

database, backend, app, *worker = sys.argv[1:]
settings.configure(
    INSTALLED_APPS=["tests.tasks.portable", *([] if app == "-" else [app])],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
    TASKS={"default": {"BACKEND": backend, "QUEUES": ["default", "slow"]}},
    USE_TZ=True,
    LOGGING_CONFIG=None,
)
logging.disable()
django.setup()
call_command("migrate", verbosity=0)

print(json.dumps({"discovered": "tests.tasks.portable.tasks" in sys.modules}))

from tests.tasks.portable.tasks import fail, greet, total  # noqa: E402 - once Django knows its settings

results = [total.enqueue(1, 2, start=3), greet.enqueue(name="Ada"), fail.enqueue("nothing there")]
if worker:
    call_command(*worker)
    for result in results:
        result.refresh()
for result in results:
    finished = result.is_finished and result.finished_at >= result.started_at >= result.enqueued_at
    returned = result.return_value if result.status == "SUCCESSFUL" else None
    errors = [(error.exception_class.__name__, error.traceback.splitlines()[-1]) for error in result.errors]
    told = [result.task.name, result.status, result.args, result.kwargs, returned, result.attempts, errors, finished]
    print(json.dumps(told))
