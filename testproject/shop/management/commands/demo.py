"""``manage.py demo``: enqueue the same work three times at once, and watch that it is done once."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop import demo


class Command(BaseCommand):
    help = (
        "Three producers enqueue one job per file of Python's standard library at the same time; a worker runs them."
        " Uses a temporary SQLite database."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--files",
            type=_positive,
            default=demo.MOST_FILES,
            metavar="N",
            help=f"Use the first N files, in alphabetical order (default {demo.MOST_FILES}).",
        )

    def handle(self, *, files: int, **options: Any) -> None:
        try:
            report = demo.run(files, self._say)
        except demo.DemoFailed as error:
            raise CommandError(f"The demo failed: {error}") from error
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None
        self._say(f"\n{report}\n\n")
        of_all = f" (of {report.files_there_are:,})" if report.files < report.files_there_are else ""
        self._say(f"Indexed {report.files:,} files{of_all} of this Python's standard library:")
        self._say(f"{report.lines:,} lines, {report.functions:,} functions, {report.classes:,} classes.")
        if not report.kept_the_promise:
            raise CommandError("The promise was broken: every file must be admitted and executed exactly once.")
        self._say("\nNext: `make serve` opens a small shop with a demo login.")

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)
