"""The pages of the admin over big tables, in turns with a plain `ModelAdmin` of the same table."""

from __future__ import annotations

import statistics
import time

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique.insight.rollups import roll_up
from tests.support.big_table import SAMPLE, gather

LIST, CHANGE = "django_ojs_unique_job_changelist", "django_ojs_unique_job_change"
ATTEMPTS, DASHBOARD = "django_ojs_unique_suppressedenqueue_changelist", "admin:django_ojs_unique_dashboard"


def report(rounds: int, jobs: int) -> None:
    """Print the time and the queries of each page, and of the plain page that shows the most similar rows."""
    begin = time.perf_counter()
    hot = gather(copies=max(1, jobs // SAMPLE)).hot.pk
    roll_up("default", timezone.now())  # as a worker has done
    print(f"filled the tables in {time.perf_counter() - begin:.0f} s", flush=True)
    client = Client()
    client.force_login(User.objects.create_superuser("benchmark"))
    for name, ours, plain in (
        ("list of jobs", reverse(f"admin:{LIST}"), reverse(f"plain:{LIST}")),
        ("job that many met", reverse(f"admin:{CHANGE}", args=[hot]), reverse(f"plain:{CHANGE}", args=[hot])),
        ("duplicates", reverse("admin:django_ojs_unique_duplicates"), reverse(f"plain:{ATTEMPTS}")),
        ("list of attempts", reverse(f"admin:{ATTEMPTS}"), reverse(f"plain:{ATTEMPTS}")),
        ("dashboard", reverse(DASHBOARD), reverse(f"plain:{LIST}")),
        ("dashboard of a week", reverse(DASHBOARD) + "?span=week", reverse(f"plain:{LIST}")),
    ):
        compare(client, name, plain, ours, rounds)


def compare(client: Client, name: str, plain: str, ours: str, rounds: int) -> None:
    """Request both pages in turns; print the median times, the median ratio, and the number of queries of each."""
    queries = [count(client, page) for page in (plain, ours)]
    pairs = [[seconds(client, page) for page in (plain, ours)] for _ in range(rounds)]
    medians = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(ours / plain for plain, ours in pairs)
    print(
        "{:<20} plain {:>7,.1f} ms  ours {:>7,.1f} ms  ratio {:.2f} ({:.2f}-{:.2f})  queries {} and {}".format(
            name, *medians, statistics.median(ratios), ratios[0], ratios[-1], *queries
        ),
        flush=True,
    )


def count(client: Client, page: str) -> int:
    """Count the queries of a request."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(page).status_code == 200, page
    return len(captured)


def seconds(client: Client, page: str) -> float:
    """Time a request."""
    begin = time.perf_counter()
    client.get(page)
    return time.perf_counter() - begin
