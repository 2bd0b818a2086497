"""The subcommand about requests that were inserted by SQL: inbox."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...db.clock import database_now
from ...models import InboxRequest
from ...ojs.words import counted
from ...reporting.text import age, harmless
from ..arguments import whole_number
from .answers import fields
from .subcommand import Subcommand
from .tables import Column


def request_id(text: str) -> int:
    """Read the id of a request."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ArgumentTypeError(f"{text!r} is not the id of a request; `manage.py jobs inbox` shows ids")
    return int(text)


class Inbox(Subcommand):
    """Show the requests in the inbox, the refused ones first: what SQL asked for, and why it was refused.

    `jobs inbox ID` shows all of one. --retry lets refused requests be decided once more, in the place that they had;
    --delete deletes requests, also those that are not decided yet. Both take ids, or --refused for all refused ones.
    """

    name = "inbox"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="*", type=request_id, metavar="ID", help="Only these requests.")
        parser.add_argument("--refused", action="store_true", help="Only requests that were refused.")
        act = parser.add_mutually_exclusive_group()
        act.add_argument("--retry", action="store_true", help="Let a worker decide them once more.")
        act.add_argument("--delete", action="store_true", help="Delete them.")
        parser.add_argument(
            "--limit", type=whole_number, default=20, metavar="N", help="Show at most so many (default 20)."
        )

    def run(self, *, ids: list[int], refused: bool, retry: bool, delete: bool, limit: int, **options: Any) -> None:
        requests = InboxRequest.objects.using(self.using)
        chosen = requests.filter(pk__in=ids) if ids else requests.all()
        chosen = chosen.refused() if refused else chosen
        if retry or delete:
            if not ids and not refused:
                raise CommandError("Which ones? Give their ids, or --refused for all refused ones.")
            self._change(chosen, "retried" if retry else "deleted")
        elif ids:
            self._show_each(list(chosen.order_by("pk")))
        else:
            self._show_list(chosen, limit)

    def _change(self, chosen: Any, done: str) -> None:
        count = chosen.retry() if done == "retried" else chosen.delete()[0]
        self.answer({done: count})
        if not count:
            raise CommandError(f"No request was {done}: none of these is there{', and refused' * (done == 'retried')}.")
        self.say(f"{done.capitalize()}: {counted(count, 'request')}.")

    def _show_each(self, found: list[InboxRequest]) -> None:
        self.answer(list(map(fields, found)))
        if not found:
            raise CommandError("There is no such request: it was decided, or never committed.")
        for one in found:
            self.say(self.style.MIGRATE_HEADING(harmless(str(one))))
            for name, value in fields(one).items():
                text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
                self.say(harmless(f"  {name}: {text}"))

    def _show_list(self, chosen: Any, limit: int) -> None:
        found = [*chosen.refused().order_by("pk")[: limit + 1], *chosen.waiting()[: limit + 1]][: limit + 1]
        shown, now = found[:limit], database_now(self.using)
        self.answer(list(map(fields, shown)))
        if not shown:
            self.say(f"The inbox of database {self.using!r} is empty: each request was decided. SQL inserts them.")
            return
        columns = (
            Column("id", "pk"),
            Column("action", "action"),
            Column("type", read=lambda one: one.type or "-", cut=True),
            Column("requested", read=lambda one: f"{age(one.requested_at, now)} ago"),
            Column("refused because", "reason", cut=True),
        )
        self.print_columns(columns, shown)
        if len(found) > limit:
            self.say(f"There are more: --limit {limit * 5} shows up to {limit * 5}.")
