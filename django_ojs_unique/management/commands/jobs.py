"""``manage.py jobs``: view and operate jobs and queues."""

from __future__ import annotations

import os
import signal
import sys
from argparse import RawDescriptionHelpFormatter
from inspect import getdoc
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter

from ...checks import TAG
from ...exceptions import OJSError
from ..arguments import add_database, require_tables
from ..jobs import SUBCOMMANDS
from ..jobs.answers import as_line, failure
from ..streams import escaping

EXAMPLES = """\
examples:
  manage.py jobs list --state retryable discarded     what failed
  manage.py jobs show 01985f3e-...                    everything about one job
  manage.py jobs explain email.send --args '{"user_id": 42}'
                                                      what would an enqueue do now, and why?
  manage.py jobs duplicates                           what was suppressed, and what lives twice
  manage.py jobs retry 01985f3e-... 01985f41-...      run them now
  manage.py jobs cancel --type email.send --since PT1H --dry-run
                                                      what would that cancel?
  manage.py jobs workers                              who runs them, and which queues nobody takes
  manage.py jobs workflows --state running            which workflows run, and how far they are
  manage.py jobs queues --watch                       how many jobs wait, every two seconds
  manage.py jobs list --state discarded --json        the same for programs: one line of JSON
  manage.py jobs limits args.customer_id --running 3  let three jobs of each customer run at once
  manage.py jobs pause emails                         let no worker take emails
  manage.py jobs verify                               do rows, fingerprints and unique keys agree?

`manage.py jobs SUBCOMMAND --help` says more about each.
"""


class _Help(RawDescriptionHelpFormatter, DjangoHelpFormatter):
    pass


class Command(BaseCommand):
    help = "Look at jobs and queues, and operate them."
    requires_system_checks = [TAG]

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, epilog=EXAMPLES, formatter_class=_Help, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
        for subcommand in SUBCOMMANDS:
            text = getdoc(subcommand) or ""
            own = subparsers.add_parser(subcommand.name, help=text.partition("\n")[0], description=text)
            subcommand.add_arguments(own)
            own.add_argument("--json", action="store_true", help="Print one line of JSON in the place of text.")
            add_database(own)

    def handle(self, *, subcommand: str, database: str, json: bool, **options: Any) -> None:
        (chosen,) = (one for one in SUBCOMMANDS if one.name == subcommand)
        try:
            require_tables(database)
            with escaping():
                chosen(database, self.stdout, self.stderr, self.style, json=json).run(**options)
        except (OJSError, CommandError) as error:
            if json:
                self.stderr.write(as_line(failure(error)), str)  # str: without colour
                sys.exit(getattr(error, "returncode", 1))
            if isinstance(error, OJSError):
                raise CommandError(error.message) from error
            raise
        except BrokenPipeError:  # the reader has ended, as in `jobs list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + getattr(signal, "SIGPIPE", 13))
