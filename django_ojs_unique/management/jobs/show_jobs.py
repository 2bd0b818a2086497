"""Subcommands that show jobs: list, show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet
from django.utils import timezone

from ...db.clock import database_now
from ...handlers.redaction import redacted_member
from ...models import Job, SuppressedEnqueue
from ...ojs.words import counted
from ...options import TEXTS
from ...reporting.bounded import MOST_LOOKED_AT, few, first
from ...reporting.job_filters import filters, narrowed
from ...reporting.job_options import handler
from ...reporting.limit_waits import waits_for
from ...reporting.list_columns import list_columns
from ...reporting.stopped import still_runs
from ...reporting.text import age, harmless
from ...reporting.unclaimed import nobody
from ..arguments import whole_number
from .answers import fields
from .filters import NO_MATCH, add_filters
from .subcommand import Subcommand, job_id

ENVELOPE = (
    *("args", "meta", "tags", "extra", "retry_options", "timeout_ms", "visibility_timeout_ms"),
    *(option.column for option in TEXTS.values()),
)
TIMES = (
    "created_at",
    "enqueued_at",
    "scheduled_at",
    "run_at",
    "expires_at",
    "started_at",
    "finished_at",
    "window_ends_at",
    "lease_expires_at",
)


class List(Subcommand):
    """List jobs, the newest first.

    Filters add up: `jobs list --state retryable discarded --queue emails`.

    If an index finds more than 10,000 jobs, or none knows the filter, the newest 20,000 jobs are looked at.
    """

    name = "list"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        add_filters(parser)
        parser.add_argument("--limit", type=whole_number, default=20, metavar="N", help="At most so many (default 20).")
        parser.add_argument("--older-than", type=job_id, metavar="ID", help="Only jobs that are older than this one.")

    def run(self, *, limit: int, older_than: UUID | None, **options: Any) -> None:
        wanted, last = filters(options), None
        ids = few(self.jobs, wanted)
        jobs: QuerySet[Any] = self.jobs if older_than is None else self.jobs.filter(pk__lt=older_than)
        if ids is not None:
            jobs = jobs.filter(pk__in=ids)
        elif wanted:
            jobs, last = first(jobs, ["-pk"])
        found = list(narrowed(jobs, wanted).order_by("-pk")[: limit + 1])
        now = database_now(self.using)
        shown = sorted(found[:limit], key=lambda job: (job.created_at, job.pk), reverse=True)
        self.answer(list(map(fields, shown)))
        if last and len(found) <= limit:
            self.warn(f"Only {MOST_LOOKED_AT:,} jobs were looked at. To see older ones, add --older-than {last[0]}")
        if not found:
            if not last:
                self.say(self._nothing(bool(wanted)))
            return
        rows = [(*_row(job, now), seen.args, seen.key, seen.error) for job in shown for seen in [list_columns(job)]]
        headings = ["id", "state", "tries", "age", "queue", "type", "args", "key", "last error"]
        self.print_table(headings, rows, cut=[4, 5], below=6)
        if len(found) > limit:
            self.say(f"There are more: --limit {limit * 5} shows up to {limit * 5}.")

    def _nothing(self, filtered: bool) -> str:
        if not self.jobs.exists():
            return f"There are no jobs in database {self.using!r}. Job.objects.enqueue() makes one."
        return NO_MATCH


def _row(job: Job, now: datetime) -> tuple[object, ...]:
    return job.pk, job.state, f"{job.attempt}/{job.most_attempts}", age(job.created_at, now), job.queue, job.type


class Show(Subcommand):
    """Show everything about one job, each error with its traceback.

    If the job waits for its queue or for a slot of a limit, it says for which one, and who holds it.
    """

    name = "show"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("id", type=job_id, metavar="ID", help="The job's id.")

    def run(self, *, id: UUID, **options: Any) -> None:
        job = self.jobs.filter(pk=id).first()
        if job is None:
            raise CommandError(f"There is no job {id} in database {self.using!r}. It may have been pruned.")
        waits = waits_for(job, self.using)
        still = still_runs(job, self.using)
        answer = {"holds_unique_key": job.holds_unique_key, "waits_for": waits, "still_runs": still}
        self.answer({**fields(job), **answer})
        self.say(self.style.MIGRATE_HEADING(harmless(str(job))))
        for label, value in self._facts(job, " ".join(waits), still):
            if value not in (None, "", [], {}):
                self._print_fact(label, value)
        for error in job.errors:
            self._print_error(error)

    def _facts(self, job: Job, waits: str, still: str) -> Iterator[tuple[str, Any]]:
        yield "still runs", still
        yield "handler", handler(job)
        yield "queue", job.queue
        yield "taken by nobody", nobody(job, self.using)
        yield "waits", waits
        yield "priority", job.priority
        yield "attempt", f"{job.attempt} of {job.most_attempts}"
        for name in ENVELOPE:
            yield name, redacted_member(job, name)
        yield "key", job.key
        yield "rewritten", counted(job.revision, "time") if job.revision else None
        yield "unique", job.unique
        yield "fingerprint", job.fingerprint
        if job.fingerprint:
            yield "keeps others out", "yes" if job.holds_unique_key else "no"
            yield "while it is", ", ".join(sorted(job.unique_states))
            met = SuppressedEnqueue.objects.using(self.using).filter(fingerprint=job.fingerprint, existing_job=job.pk)
            yield "suppressed", counted(met.count(), "enqueue")
        yield "replaced by", job.replaced_by_id
        for name in TIMES:
            yield name, getattr(job, name)
        yield "worker_id", job.worker_id
        if job.progress is not None:
            yield "progress", f"{job.progress:.0%} {job.progress_note}"
        yield "steps", redacted_member(job, "steps")
        yield "result", redacted_member(job, "result")
        for name in ("skipped", "dead_letter", "payload_pruned"):
            yield name, getattr(job, name) or None

    def _print_fact(self, label: str, value: Any) -> None:
        if isinstance(value, datetime):
            ago = age(value, database_now(self.using))
            text = f"{timezone.localtime(value):%Y-%m-%d %H:%M:%S %Z} ({ago if ago.startswith('in') else f'{ago} ago'})"
        elif isinstance(value, (dict, list)):
            text = json.dumps(value, ensure_ascii=False)
        else:
            text = str(value)
        self.say(f"  {label.replace('_at', '').replace('_', ' '):<18}{harmless(text)}")

    def _print_error(self, error: Any) -> None:
        record = error if isinstance(error, dict) else {"message": str(error)}
        shown = {name: str(record.get(name, "?")) for name in ("attempt", "occurred_at", "type", "message")}
        self.say("")
        headline = f"attempt {shown['attempt']} failed at {shown['occurred_at']}: {shown['type']}: {shown['message']}"
        self.say(self.style.ERROR(harmless(headline)))
        details = record.get("details")
        trace = details.get("traceback") if isinstance(details, dict) else None
        for line in harmless(str(trace or shown["message"]), lines=True).rstrip().split("\n"):
            self.say(f"  {line}")
