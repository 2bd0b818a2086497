"""The subcommand for the index for searches in the args: index-args."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import NotSupportedError, connections

from ...db.args_index import args_index_sql, has_args_index
from ...models import Job
from .subcommand import Subcommand


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
