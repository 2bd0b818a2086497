"""All surfaces of one database as a test asks them, and plain SQL to hold what they say against."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_ojs_unique.contrib.prometheus import JobsCollector

LIST = {"limit": 200}


class Surfaces:
    """What each surface says. All that a person or a program reads is asked for as they would."""

    def __init__(self) -> None:
        self._client = Client()
        self._client.force_login(User.objects.create_superuser("everybody"))

    def cli(self, *words: str) -> Any:
        """Return the JSON of ``manage.py jobs``."""
        return json.loads(self._jobs(*words, "--json")[0])

    def table(self, *words: str) -> list[dict[str, str]]:
        """Return the rows of a table of ``manage.py jobs``, by their headings."""
        heading, *lines = self._jobs(*words)[0].rstrip().split("\n")
        places = [match.start() for match in re.finditer(r"\S+(?: \S+)*", heading)]
        spans = [slice(*ends) for ends in zip(places, [*places[1:], None], strict=True)]
        return [{heading[span].strip(): line[span].strip() for span in spans} for line in lines]

    def said(self, *words: str) -> str:
        """Return what ``manage.py jobs`` says beside its table."""
        return self._jobs(*words)[1]

    def text(self, *words: str) -> str:
        return self._jobs(*words)[0]

    def _jobs(self, *words: str) -> tuple[str, str]:
        out, err = StringIO(), StringIO()
        try:
            call_command("jobs", *words, stdout=out, stderr=err, no_color=True)
        except CommandError as error:
            err.write(str(error))
        return out.getvalue(), err.getvalue()

    def command(self, *words: str) -> str:
        """Return what another command of ``manage.py`` says."""
        out = StringIO()
        call_command(*words, stdout=out)
        return out.getvalue()

    def page(self, name: str, *path: object, **query: Any) -> Any:
        """Return what a page of the admin shows, as its template gets it."""
        answer = self._client.get(reverse(f"admin:django_ojs_unique_{name}", args=path), query)
        assert answer.status_code == 200, answer.content
        return answer.context

    def html(self, name: str, *path: object) -> str:
        """Return the words of a page of the admin."""
        return words(self._client.get(reverse(f"admin:django_ojs_unique_{name}", args=path)).content.decode())

    def list(self, model: str, **query: Any) -> Any:
        """Return the list of a model in the admin."""
        return self.page(f"{model}_changelist", **query)["cl"]

    def count(self, model: str, **query: Any) -> int:
        """Return how many rows a list of the admin says that it has."""
        return int(self.list(model, **query).result_count)

    def http(self, path: str, **query: Any) -> Any:
        answer = self._client.get(f"/ojs/v1/{path}", query)
        assert answer.status_code == 200, answer.content
        return answer.json()

    def total(self, path: str, **query: Any) -> int:
        """Return how many rows a list of the API says that there are."""
        return int(self.http(path, **query)["pagination"]["total"])

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the samples of a metric by their labels."""
        registry = CollectorRegistry()
        registry.register(JobsCollector())
        families = text_string_to_metric_families(generate_latest(registry).decode())
        (family,) = [family for family in families if family.name == name]
        return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def sql(statement: str, **parameters: Any) -> set[tuple[Any, ...]]:
    """Return the rows of a statement, without those that count nothing.

    ``{job}`` and the like are tables. ``%(now)s`` is the time, and ``%(minute)s`` is when the last minute began.
    """
    now = timezone.now()
    moments = {"now": now, **{name: now - length for name, length in LENGTHS.items()}, **parameters}
    tables = {name: f"django_ojs_unique_{name}" for name in TABLES}
    values = {
        name: connection.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value
        for name, value in moments.items()
    }
    text = "CHAR" if connection.vendor == "mysql" else "TEXT"
    with connection.cursor() as cursor:
        cursor.execute(statement.format(text=text, **tables), values)
        rows = [tuple(map(plain, row)) for row in cursor.fetchall()]
    return {row for row in rows if row[-1] not in (0, None)}


TABLES = (
    "job", "queue", "workerprocess", "suppressedenqueue", "inbox", "workflow", "workflowmember", "cronjob", "event",
    "stoppedrun", "limitpartition", "slot",
)  # fmt: skip
LENGTHS = {
    "heard": timedelta(seconds=30),
    "minute": timedelta(minutes=1),
    "half_an_hour": timedelta(minutes=30),
    "hours": timedelta(hours=2),
    "day": timedelta(days=1),
}


def plain(value: Any) -> Any:
    """Return what a database says as every other one would."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", value):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    if isinstance(value, (str, int, type(None))):
        return value
    return int(value) if str(value).replace(".", "").isdigit() else str(value).replace("-", "")


def pairs(counts: dict[Any, Any]) -> set[tuple[Any, ...]]:
    """Return counts as the rows of a statement, without those of nothing."""
    return {(*(key if isinstance(key, tuple) else (key,)), count) for key, count in counts.items() if count}


def number(text: object) -> int:
    """Read a number as a page or a table shows it; a plus sign would say that it is not exact."""
    shown = strip_tags(str(text)).strip().replace(",", "")
    assert shown.isdigit(), shown
    return int(shown)


def words(text: object) -> str:
    return " ".join(strip_tags(str(text)).split())


def told(length: float) -> str:
    """Say how long something took, as a person would: in the largest unit that fits."""
    unit, size = next(((u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if length >= n), ("s", 1))
    return f"{int(length // size)}{unit}"


def since(moment: datetime) -> str:
    return told((timezone.now() - moment).total_seconds())


def ranked(numbers: Sequence[float], share: float) -> float:
    """Return the smallest number that so large a share does not exceed."""
    ordered = sorted(numbers)
    return next(each for place, each in enumerate(ordered, 1) if place >= share * len(ordered))
