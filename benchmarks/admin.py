"""The pages of the admin over big tables, in turns with a plain `ModelAdmin` of the same table."""

from __future__ import annotations

import statistics
import time

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs_unique.models import Job
from tests.support.big_table import SAMPLE, gather

LIST, CHANGE, HISTORY = (f"django_ojs_unique_job_{page}" for page in ("changelist", "change", "history"))
ATTEMPTS, DASHBOARD = "django_ojs_unique_suppressedenqueue_changelist", "admin:django_ojs_unique_dashboard"


def report(rounds: int, jobs: int) -> None:
    """Print the time and the queries of each page, and of the plain pages that show the most similar rows.

    A job's page also shows what operators did to the job, and what met it. A plain admin shows these on two more pages:
    the history, and the list of these attempts.
    """
    begin = time.perf_counter()
    crowd = gather(copies=max(1, jobs // SAMPLE))
    print(f"filled the tables in {time.perf_counter() - begin:.0f} s", flush=True)
    client = Client()
    client.force_login(User.objects.create_superuser("benchmark"))
    plain_list, plain_attempts = reverse(f"plain:{LIST}"), reverse(f"plain:{ATTEMPTS}")
    for name, ours, *plain in (
        ("list of jobs", reverse(f"admin:{LIST}"), plain_list),
        ("job that failed", change("admin", crowd.discarded), *change_and_history(crowd.discarded)),
        (
            "job that many met",
            change("admin", crowd.hot),
            *change_and_history(crowd.hot),
            f"{plain_attempts}?fingerprint={crowd.hot.fingerprint}",
        ),
        ("duplicates", reverse("admin:django_ojs_unique_duplicates"), plain_attempts),
        ("list of attempts", reverse(f"admin:{ATTEMPTS}"), plain_attempts),
        ("dashboard", reverse(DASHBOARD), plain_list),
        ("dashboard of a week", reverse(DASHBOARD) + "?span=week", plain_list),
    ):
        compare(client, name, plain, [ours], rounds)


def change(site: str, job: Job) -> str:
    """Return the address of a job's page."""
    return reverse(f"{site}:{CHANGE}", args=[job.pk])


def change_and_history(job: Job) -> list[str]:
    """Return the addresses of the two plain pages of a job."""
    return [change("plain", job), reverse(f"plain:{HISTORY}", args=[job.pk])]


def compare(client: Client, name: str, plain: list[str], ours: list[str], rounds: int) -> None:
    """Request the pages in turns; print the median times, the median ratio, and the number of queries."""
    queries = [sum(count(client, page) for page in pages) for pages in (plain, ours)]
    pairs = [[sum(seconds(client, page) for page in pages) for pages in (plain, ours)] for _ in range(rounds)]
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
