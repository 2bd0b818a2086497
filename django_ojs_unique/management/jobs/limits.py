"""The subcommand about limits: limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...db.clock import database_now
from ...exceptions import nearest
from ...models import LimitOverride
from ...ojs.limits import LARGEST
from ...reporting.limits import LimitReport, Numbers, PartitionReport, limits, partitions_of
from ...reporting.text import age, count_text, harmless
from ..arguments import whole_number
from .show_system import Watched
from .subcommand import limit_, number_or_none
from .tables import Column, as_json

KEEP: Any = ...
"""The value of a number that was not given; None takes the operator's number back."""


class Limits(Watched):
    """Show the limits: the numbers in force, how many partitions they have, what runs, and what waits for a slot.

    `jobs limits NAME` shows the partitions of one limit. `jobs limits NAME --running 3` lets three jobs of each one run
    at once, from the next claim on, also those that wait already. Such numbers replace those in the code until --reset.
    """

    name = "limits"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument(
            "limit", nargs="?", type=limit_, metavar="NAME", help="The name of a limit, as in args.customer_id."
        )
        number, read = "a whole number, or none for the number in the code", partial(number_or_none, most=LARGEST)
        parser.add_argument(
            "--running",
            type=read,
            default=KEEP,
            metavar="N",
            help=f"How many jobs of a partition may run at once: {number}.",
        )
        parser.add_argument(
            "--rate", type=read, default=KEEP, metavar="N", help=f"How many may start in the limit's time: {number}."
        )
        parser.add_argument("--reset", action="store_true", help="Let the numbers in the code count again.")
        parser.add_argument(
            "--most", type=whole_number, default=20, metavar="N", help="At most so many partitions (default 20)."
        )
        Watched.add_arguments(parser)

    def run(
        self, *, limit: str | None, running: Any, rate: Any, reset: bool, most: int, watch: float | None, **options: Any
    ) -> None:
        given = {name: value for name, value in (("running", running), ("rate", rate)) if value is not KEEP}
        if not reset and not given:
            self._limit, self._most = limit, most
            self.keep_showing(watch)
            return
        if limit is None:
            raise CommandError("Name the limit that you want to change; `manage.py jobs limits` shows their names.")
        if reset and given:
            raise CommandError("--reset goes without --running and --rate: it takes both numbers back.")
        if watch is not None:
            raise CommandError("--watch goes without a change.")
        self._change(limit, given)

    def show(self) -> None:
        found = limits(self.using)
        if self._limit is None:
            self._show_all(found)
            return
        one = self._named(found, self._limit)
        partitions, columns = partitions_of(self.using, self._limit, self._most), _partition(self.using)
        self.answer({**as_json(LIMIT, one), "keys_with_jobs": [as_json(columns, each) for each in partitions]})
        self.say(self.style.MIGRATE_HEADING(harmless(f"{one.name}: {_numbers(one)}")))
        if one.override is not None:
            self.say(f"Set by an operator; the code says {' or '.join(map(str, one.given)) or 'nothing here'}.")
        if not partitions:
            self.say("No job runs under it or waits for it now.")
            return
        self.print_columns(columns, partitions)
        if len(partitions) == self._most:
            self.say(f"These are the first {self._most}; --most {self._most * 5} shows up to {self._most * 5}.")

    def _show_all(self, found: list[LimitReport]) -> None:
        self.answer([as_json(LIMIT, one) for one in found])
        if not found:
            self.say(
                f"No job in database {self.using!r} has a limit. @job(..., limit=Limit(key=['args.customer_id'],"
                " running=1)) lets one job of each customer run at a time."
            )
            return
        self.print_columns(LIMIT, found)

    def _change(self, name: str, given: dict[str, int | None]) -> None:
        found = limits(self.using)
        if all(one.name != name for one in found):
            self.warn(f"{_unknown(name, found)} It counts for a limit that will be named so.")
        overrides = LimitOverride.objects.using(self.using)
        old = overrides.filter(pk=name).first() if given else None
        numbers = {field: getattr(old, field, None) for field in ("running", "rate")} | given
        changed = overrides.set(name, **numbers)
        self.answer({"name": name, **numbers, "changed": changed})
        one = next((one for one in limits(self.using) if one.name == name), LimitReport(name))
        self.say(harmless(f"{name}: {_numbers(one)}{'.' if changed else ', as before.'}"))
        if given.get("rate") is not None and one.given and not any(each.seconds for each in one.given):
            self.warn("The limit has no rate in the code, so --rate has no effect on it.")

    def _named(self, found: list[LimitReport], name: str) -> LimitReport:
        for one in found:
            if one.name == name:
                return one
        raise CommandError(_unknown(name, found))


def _unknown(name: str, found: list[LimitReport]) -> str:
    close = nearest(name, {one.name for one in found})
    meant = f"Did you mean {close!r}?" if close else "`manage.py jobs limits` shows those that there are."
    return f"Nothing knows a limit {name!r}: no job, no handler. {meant}"


def _numbers(one: LimitReport) -> str:
    return " or ".join(map(str, one.numbers)) or "as the code says"


def _plain(numbers: Sequence[Numbers]) -> list[dict[str, int | None]]:
    return [{"running": one.running, "rate": one.rate, "seconds": one.seconds or None} for one in numbers]


def _count(name: str) -> Callable[[LimitReport | PartitionReport], str]:
    return lambda one: count_text(getattr(one, name), one.is_cut)


LIMIT = (
    Column("limit", "name", cut=True),
    Column("numbers", show=_numbers),
    Column("", "numbers", lambda one: _plain(one.numbers)),
    Column("", "in_code", lambda one: _plain(one.given)),
    Column("set by", show=lambda one: "operator" if one.override else "code"),
    Column("", "override", lambda one: one.override and {"running": one.override.running, "rate": one.override.rate}),
    Column("", "keys", attrgetter("partitions")),
    Column("partitions", show=_count("partitions")),
    Column("", "running"),
    Column("running", show=_count("running")),
    Column("", "waiting"),
    Column("waiting", show=_count("waiting")),
    Column("", "waiting_partitions"),
    Column("partitions waited for", show=_count("waiting_partitions")),
    Column("", "is_cut"),
)


def _partition(using: str) -> tuple[Column, ...]:
    return (
        Column("partition", "text", cut=True),
        Column("", "running"),
        Column("running", show=_count("running")),
        Column("", "waiting"),
        Column("waiting", show=_count("waiting")),
        Column("", "is_cut"),
        Column("since", "since", show=lambda since: age(since, database_now(using))),
        Column("first that waits", "first_job_id", attrgetter("first"), show=lambda id: id or "-"),
    )
