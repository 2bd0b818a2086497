"""Subcommands that look after the table of jobs: verify, rekey and index-args."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import NotSupportedError, connections

from ...db.args_index import args_index_sql, has_args_index
from ...models import Job
from ...ojs.words import counted
from ...operations.integrity import Findings, Kind, rekey, verify
from ...operations.integrity.problems import MANUAL
from ...progress import progress
from ...reporting.text import harmless
from .subcommand import Subcommand, type_


class Upkeep(Subcommand):
    """A subcommand that goes through all jobs."""

    def name_all(self, headline: str, lines: Sequence[object]) -> None:
        self.say(self.style.WARNING(headline))
        for line in lines:
            self.say(f"  {harmless(str(line))}")


class Verify(Upkeep):
    """Report where rows, fingerprints and unique keys do not agree, and with --fix fix it.

    The exit code is 1 if an inconsistency is left. Safe beside workers and producers. Of waiting jobs that duplicate
    one another the oldest stays, and --fix cancels the newer ones; a job that runs is never cancelled.
    """

    name = "verify"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("--fix", action="store_true", help="Fix what is found, and verify again.")

    def run(self, *, fix: bool, verbosity: int, **options: Any) -> None:
        found: list[Findings] = []

        def tell(findings: Findings) -> None:
            found.append(findings)
            self._report(findings)

        left = verify(self.jobs, fix=fix, bars=partial(progress, verbosity), before_fix=tell)
        fixed = sum(found[0].counts.values()) - sum(left.counts.values()) if found else 0
        if found:
            self.say(self.style.SUCCESS(f"Fixed: {counted(fixed, 'finding')}, as said above."))
        self.answer(
            {
                "looked_at": left.looked_at,
                "fixed": fixed,
                "findings": [
                    {"kind": kind.name.lower(), "problem": kind.problem, "count": count, "job_ids": left.named[kind]}
                    for kind, count in left.counts.items()
                ],
            }
        )
        if not left:
            self.say(f"Nothing to fix in {counted(left.looked_at, 'job')}: rows, fingerprints and unique keys agree.")
            return
        if fix:
            self.say("Left:")
        self._report(left)
        count = sum(left.counts.values())
        if not fix and left.counts.keys() - MANUAL:
            raise CommandError(f"{count:,} to fix: run `manage.py jobs verify --fix --database {self.using}`.")
        raise CommandError(f"{count:,} to fix.")

    def _report(self, findings: Findings) -> None:
        for kind in Kind:
            if count := findings.counts[kind]:
                self.say(self.style.WARNING(f"{kind.problem}: {count:,}"))
                self.say(f"  hint: {kind.hint}")
                if named := findings.named[kind]:
                    more = ", …" if count > len(named) else ""
                    self.say(f"  jobs: {', '.join(map(str, named))}{more}")


class Rekey(Upkeep):
    """Give live jobs the unique policy that their handlers declare now, with fingerprint and unique key anew.

    For when a policy changes while jobs wait. Safe beside workers and producers. Where several jobs then share a
    fingerprint, the oldest keeps the unique key, and the others go on without it. A job with a key keeps it. A job
    whose args do not fit the policy is named and left as it is. A job that was enqueued with a policy of its own gets
    the handler's, too.
    """

    name = "rekey"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument(
            "--type",
            nargs="+",
            action="extend",
            type=type_,
            metavar="TYPE",
            help="Only jobs of these types; by default of all that have a handler.",
        )
        parser.add_argument(
            "--cancel-duplicates",
            action="store_true",
            help="Cancel waiting jobs that the policy counts as duplicates of an older one.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Say what would be done; change nothing.")

    def run(
        self, *, type: list[str] | None, cancel_duplicates: bool, dry_run: bool, verbosity: int, **options: Any
    ) -> None:
        result = rekey(
            self.jobs, type, dry_run=dry_run, cancel_duplicates=cancel_duplicates, bars=partial(progress, verbosity)
        )
        self.answer(
            {
                **asdict(result),
                "cancelled": [{"id": pk, "older_id": older} for pk, older in result.cancelled],
                "misfits": [{"id": pk, "problem": problem} for pk, problem in result.misfits],
                "dry_run": dry_run,
            }
        )
        if result.misfit_count:
            self.name_all(
                f"{result.misfit_count:,} left as they are, as their args do not fit the policy:",
                [f"{pk}: {problem}" for pk, problem in result.misfits],
            )
        if result.cancelled_count:
            self.name_all(
                f"{result.cancelled_count:,} cancelled as duplicates:",
                [f"{pk}, for {older}" for pk, older in result.cancelled],
            )
        if result.released_count:
            self.name_all(f"{result.released_count:,} without a unique key, as an older job has it:", result.released)
        would = "would be " if dry_run else ""
        self.say(
            f"{result.rekeyed:,} of {counted(result.looked_at, 'live job')} {would}rekeyed,"
            f" {result.left:,} {would}taken out of uniqueness.{' Nothing was changed.' if dry_run else ''}"
        )


class IndexArgs(Subcommand):
    """Let searches such as user_id=42 find jobs by an index, in a table of any size. PostgreSQL only.

    Without the index, the admin looks at the newest 20,000 jobs. Every enqueue pays for the index. It is built while
    jobs are enqueued and run.
    """

    name = "index-args"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("--drop", action="store_true", help="Drop the index.")
        parser.add_argument("--sql", action="store_true", help="Print the SQL, and run nothing.")

    def run(self, *, drop: bool, sql: bool, **options: Any) -> None:
        connection = connections[self.using]
        try:
            statements = args_index_sql(Job, connection, drop=drop)
        except NotSupportedError as error:
            raise CommandError(f"{error} Search by a job's id, its key or its queue, or select a day first.") from None
        done = not sql and has_args_index(Job, connection) is not drop
        self.answer({"indexed": has_args_index(Job, connection) if sql else not drop, "sql": statements})
        if sql:
            for statement in statements:
                self.say(f"{statement};")
            return
        if done:
            self.say("There is no such index." if drop else "The index is there already.")
            return
        if connection.in_atomic_block:
            raise CommandError("PostgreSQL cannot do this in a transaction: call it outside of atomic().")
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        self.say(self.style.SUCCESS("Dropped the index." if drop else "The index is there: searches use it."))
