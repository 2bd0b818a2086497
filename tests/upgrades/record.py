"""Record what a release leaves in its tables, before it is published: ``python -m tests.upgrades.record 0.2.0``.

A file of JSON lines: the last migration, then each row with its model.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
APP = "django_ojs_unique"


def record(release: str, folder: Path = FOLDER) -> Path:
    """Write the rows that the code at hand makes; return the file."""
    from django.apps import apps
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    make_rows()
    ((_, migration),) = MigrationLoader(connection).graph.leaf_nodes(APP)
    lines: list[dict[str, Any]] = [{"migration": migration}]
    for model in apps.get_app_config(APP).get_models():
        rows = model._default_manager.order_by("pk")
        assert rows, f"make_rows() makes no {model.__name__}"
        lines += [{"model": model.__name__, "columns": columns(row)} for row in rows]
    path = folder / f"{release}.jsonl"
    text = "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    path.write_text(text.replace(f"{ROOT}/", ""))  # in tracebacks
    return path


def columns(row: Any) -> dict[str, Any]:
    """Return the columns of a row, as the fields of its historical model read them."""
    values = {field: field.value_from_object(row) for field in row._meta.concrete_fields}
    return {
        field.attname: field.get_prep_value(value) if isinstance(value, frozenset) else value
        for field, value in values.items()
    }


def make_rows() -> None:
    """Make a row of every kind that users have by now: add to it what a release brings."""
    from django.test import override_settings
    from django.utils import timezone

    from django_ojs_unique.db.fields import new_id
    from django_ojs_unique.models import CronJob, Event, InboxRequest, LimitOverride, Queue, StoppedRun
    from django_ojs_unique.reporting.activity import roll_up
    from django_ojs_unique.worker import heartbeat

    with override_settings(OJS_UNIQUE={"EVENTS": True}):
        make_jobs()
        Event.objects.follow()
        Queue.objects.pause("paused")  # an event without a position
    Queue.objects.limit("limited", 3)
    Queue.objects.rate_limit("limited", 10)
    LimitOverride.objects.set("up.tenant", rate=2)
    CronJob.objects.define("nightly", "0 3 * * *", "up.cron", {"a": 1}, timezone="Europe/Berlin", queue="reports")
    InboxRequest.objects.create(type="up.asked", args=[1], options={"key": "asked"})
    InboxRequest.objects.create(
        type="up.asked", options={"delay": "soon"}, refused_at=timezone.now(), error={"code": "x"}
    )
    roll_up("default", timezone.now() + timedelta(hours=1))
    heartbeat.say_hello("default", "worker-1", timezone.now(), hostname="host", queues=["*"], concurrency=4)
    StoppedRun.objects.create(
        job_id=new_id(), queue="limited", worker_id="worker-1", lease_token=new_id(), lease_expires_at=timezone.now()
    )


def make_jobs() -> None:
    """Make jobs in every state, with and without policies and keys, and enqueues that they met."""
    from django.utils import timezone

    from django_ojs_unique import (
        Discard,
        DuplicateJob,
        Limit,
        Retry,
        RetryPolicy,
        UniquePolicy,
        batch,
        chain,
        group,
        job,
        lifecycle,
    )
    from django_ojs_unique.db.fields import new_id
    from django_ojs_unique.maintenance import prune
    from django_ojs_unique.models import Job
    from django_ojs_unique.testing import run_jobs, temporary_handlers

    def complete(**args: Any) -> Any:
        return args

    def fail(**args: Any) -> None:
        raise Discard("it cannot work")

    def wait(**args: Any) -> None:
        raise Retry(after="P29000D", reason="not in this century")

    def enqueue(type: str, args: Any = None, **options: Any) -> Any:
        return Job.objects.enqueue(type, args, **options).job

    by_args = UniquePolicy(keys=["type", "args"])
    for_good = UniquePolicy(keys=["type", "args"], states=["available", "active", "completed"], period="P90Y")
    now, much_later = timezone.now(), timezone.now() + timedelta(days=365 * 80)
    with temporary_handlers():
        job("up.done")(complete)
        job("up.failed", retry=RetryPolicy(max_attempts=1, on_exhaustion="dead_letter"))(fail)
        job("up.failing")(wait)
        job(
            "up.limited",
            limit=[Limit(key=["type"], running=1), Limit(key=["meta.tenant"], per_hour=1, name="up.tenant")],
        )(complete)
        enqueue("up.limited", meta={"tenant": 7})
        enqueue("up.done", {"payload_pruned": True}, unique=for_good)
        run_jobs()
        prune.prune(Job.objects.all(), timezone.now(), retention={"completed": timedelta(0)})
        enqueue("up.done", {"n": 1}, unique=for_good)
        enqueue("up.failed", {"n": 1}, unique=by_args)
        enqueue("up.failing", {"n": 1}, unique=by_args)
        failed = batch([{"type": "up.failed", "args": {"n": 2}}], on_failure={"type": "up.done"}, name="handled")
        chain({"type": "up.done", "args": {"n": 2}}, failed, {"type": "up.failing", "args": {"n": 3}}).enqueue()
        run_jobs()
        enqueue("up.limited", meta={"tenant": 8})
        group([{"type": "up.done", "args": {"n": 3}}, {"type": "up.done", "delay": 60}]).enqueue().cancel()
    enqueue("up.plain", [1, "two"], meta={"tenant": 7}, tags=["a"], priority=5, timeout="PT30S", expires_at=much_later)
    enqueue("up.waiting", {"n": 1, "ünïcode": "é"}, unique=by_args)
    enqueue("up.by_meta", meta={"tenant": 7}, unique={"keys": ["type", "queue", "meta"], "meta_keys": ["tenant"]})
    enqueue("up.later", {"n": 1}, unique=by_args, scheduled_at=much_later)
    enqueue("up.keyed", {"n": 1}, key="k", scheduled_at=much_later)
    enqueue("up.keyed", {"n": 2}, key="k", scheduled_at=much_later)
    enqueue("up.cancelled", unique={}).cancel()
    held = enqueue("up.held", {"n": 1}, unique=by_args)
    lease = timedelta(milliseconds=1)
    lifecycle.claim(Job.objects.filter(pk=held.pk), now, worker_id="worker-1", token=new_id(), lease=lease)
    for strategy in ("ignore", "replace"):
        enqueue("up.waiting", {"n": 1, "ünïcode": "é"}, unique={"keys": ["type", "args"], "on_conflict": strategy})
    with suppress(DuplicateJob):
        enqueue("up.later", {"n": 1}, unique=by_args)


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    print(record(*sys.argv[1:]))
