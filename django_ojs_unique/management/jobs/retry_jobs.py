"""The subcommand that makes jobs run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.management.base import CommandParser
from django.utils import timezone

from ...ojs.states import JobState
from ...operations.operation import RETRY
from .change_jobs import OnMatchingJobs

if TYPE_CHECKING:
    from ...reporting.preview import Consequence


class Retry(OnMatchingJobs):
    """Make jobs available now: those that are scheduled, retryable or pending, and discarded ones with new attempts.

    A job is refused while a live job has its key. Give ids, or filters: `jobs retry --type email.send --dead-letter`.
    Filters select discarded jobs only, unless --state says otherwise. A cancelled job is retried if you give its id or
    `--state cancelled`.
    """

    name = "retry"
    operation = RETRY
    unasked = RETRY.states - {JobState.DISCARDED}
    cannot = (
        "cannot be retried: only scheduled, retryable, pending, discarded and cancelled jobs can, unless they were"
        " replaced or pruned. To do finished work once more, use `jobs enqueue-again`."
    )
    hint = " Cancel that one first, or let both run with --force."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        OnMatchingJobs.add_arguments(parser)
        parser.add_argument(
            "--force",
            action="store_true",
            help="Retry a finished job although a live job has its key: both will run.",
        )

    def switches(self, options: dict[str, Any]) -> dict[str, bool]:
        return {"force": options["force"]}

    def consequences(self, ids: list[UUID], **switches: bool) -> Sequence[Consequence]:
        from ...reporting.preview import of_retries

        return of_retries(self.jobs, ids, timezone.now(), **switches)
