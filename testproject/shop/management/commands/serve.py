"""``manage.py serve``: the example project with a demo login and a worker, until Ctrl-C."""

import signal
import sys
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import reverse

from shop import serve
from shop.traffic import traffic


class Command(BaseCommand):
    help = (
        "Prepare the database, make a demo login, and run the server, a worker and some customers until Ctrl-C."
        " For your machine only."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="The port on 127.0.0.1 (default 8000).")

    def handle(self, *, port: int, **options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            serve.prepare(port)
        except serve.CannotServe as error:
            raise CommandError(str(error)) from None
        address = f"{serve.HOST}:{port}"
        self.stdout.write(
            f"The shop:   http://{address}/\n"
            f"The admin:  http://{address}{reverse('admin:index')} (log in as {serve.LOGIN} / {serve.PASSWORD},"
            f" or as {serve.VIEWER} / {serve.VIEWER}, who may only look)\n"
            f"Dashboard:  http://{address}{reverse('admin:django_ojs_unique_dashboard')}\n"
            f"Duplicates: http://{address}{reverse('admin:django_ojs_unique_duplicates')}\n"
            f"The API:    curl http://{address}{reverse('ojs:jobs')} -H 'Authorization: Token {serve.TOKEN}' --json"
            """ '{"type": "letter.count", "args": [{"text": "hello"}], "options": {"queue": "letters"}}'\n"""
            f"            (then OJS_URL=http://{address} OJS_TOKEN={serve.TOKEN}"
            " .venv/bin/python examples/worker.py letters)\n"
            "Ctrl-C stops the server, the worker and the customers."
        )
        self.stdout.flush()
        with serve.worker(), traffic():
            call_command("runserver", address, use_reloader=False, skip_checks=True, verbosity=0)
