"""The editors of the magazine."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

from django.core.management.base import BaseCommand, CommandError
from django.db import connections, transaction
from django.db.models import Count
from wagtail.models import Page

from django_ojs_unique.models import Job, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.unique.presets import INCOMPLETE
from magazine.models import Article

SLUGS = ("cats", "dogs", "fish")
BURST = 5
PATIENCE = 120.0


class Command(BaseCommand):
    help = "Let an editor for each page save it so many times, in bursts; print what the jobs did as JSON."

    def add_arguments(self, parser):
        parser.add_argument("--saves", type=int, required=True)

    def handle(self, *, saves, **options):
        home = Page.objects.get(depth=2)
        pages = [home.add_child(instance=Article(title=slug.title(), slug=slug, body="empty")) for slug in SLUGS]
        until("a worker is up", WorkerProcess.objects.exists)
        for first in range(0, saves, BURST):
            burst = range(first, min(first + BURST, saves))
            with ThreadPoolExecutor(len(pages)) as editors:
                list(editors.map(lambda page, burst=burst: edit(page.pk, page.slug, burst), pages))
            until("all jobs have ended", lambda: not Job.objects.filter(state__in=INCOMPLETE).exists())
        self.stdout.write(json.dumps({**counts(), "wrong": [*wrong(pages, saves)]}))


def edit(pk, slug, burst):
    """Save a page again and again, each time in one transaction, as a view does under ``ATOMIC_REQUESTS``."""
    try:
        for number in burst:
            with transaction.atomic():
                article = Article.objects.get(pk=pk)
                article.body = word(slug, number)
                article.save_revision().publish()
    finally:
        connections.close_all()


def word(slug, number):
    return f"{slug}edition{number}"


def until(what, condition):
    """Return when the condition holds; raise CommandError if it does not come to hold."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise CommandError(f"It never came to pass that {what}.")
        time.sleep(0.02)


def counts():
    """Return how many jobs of each type were asked for, how many ran, and how many failed.

    Each enqueue has left a job, or, if it was deduplicated, a record.
    """

    def by_type(rows):
        return dict(rows.order_by().values_list("type").annotate(Count("pk")))

    created, deduplicated = (
        by_type(Job.objects.all()),
        by_type(SuppressedEnqueue.objects.filter(outcome="deduplicated")),
    )
    return {
        "asked": {type: number + deduplicated.get(type, 0) for type, number in created.items()},
        "ran": by_type(Job.objects.filter(state="completed")),
        "failed": by_type(Job.objects.filter(state="discarded")),
    }


def wrong(pages, saves):
    """Yield where the search index does not hold the last text of a page, or still holds an earlier one."""
    for page in pages:
        for number in range(saves):
            found = [article.pk for article in Article.objects.search(word(page.slug, number))]
            expected = [page.pk] if number == saves - 1 else []
            if found != expected:
                yield f"{word(page.slug, number)}: found on {found}, expected on {expected}"
