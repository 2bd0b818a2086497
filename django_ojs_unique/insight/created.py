"""Find jobs by the time of their creation, which has no index.

Lists of jobs are sorted by the id, which ascends with that time. A job whose caller chose its id may be out of order.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db.models import Q

from ..ojs.states import INCOMPLETE, TERMINAL

CLOCKS = timedelta(hours=1)
"""The clock of the host that creates a job may differ this much from the clock of the host that finishes it."""

_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)


def created_since(moment: datetime) -> Q:
    """Return the condition for jobs that were created at or after a moment.

    Such a job has not finished, or it finished after that moment: there is an index for each of the two cases.
    """
    finished_later = Q(
        payload_pruned__in=[False, True],
        state__in=sorted(TERMINAL),
        dead_letter__in=[False, True],
        finished_at__gte=max(moment, _EARLIEST) - CLOCKS,
    )
    unfinished = Q(state__in=sorted(INCOMPLETE), finished_at__isnull=True)
    return Q(unfinished | finished_later, created_at__gte=moment)
