"""The inbox: how many requests wait, since when, and how many were refused."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db.models import Count

from ..models import InboxRequest


class InboxReport(NamedTuple):
    """How many requests wait, how many were refused, and since when the first one waits."""

    waiting: int
    refused: int
    waits_since: datetime | None


def inbox(using: str) -> InboxReport:
    """Count every request. Two statements, of which one reads the index of all requests."""
    requests = InboxRequest.objects.using(using)
    first = requests.waiting().values_list("requested_at", flat=True).first()
    count = requests.aggregate(all=Count("pk"), refused=Count("refused_at"))
    return InboxReport(count["all"] - count["refused"], count["refused"], first)
