"""The inbox: how many requests wait, since when, and how many were refused."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..models import InboxRequest
from .text import MOST_COUNTED


class InboxReport(NamedTuple):
    """Numbers of requests, counted up to one more than `MOST_COUNTED`, and since when the first one waits."""

    waiting: int
    refused: int
    waits_since: datetime | None


def inbox(using: str) -> InboxReport:
    """Read the inbox in three statements."""
    requests, most = InboxRequest.objects.using(using), MOST_COUNTED + 1
    first = requests.waiting().values_list("requested_at", flat=True).first()
    return InboxReport(requests.waiting()[:most].count(), requests.refused()[:most].count(), first)
