"""Turn waiting tasks of django-tasks-db into jobs here: see ``docs/migrate-from-django-tasks-db.md``."""

from dataclasses import replace

from django.apps import apps
from django.db import transaction

from django_ojs_unique.exceptions import JobIdTaken


@transaction.atomic
def move(limit=1_000):
    """Turn waiting tasks of django-tasks-db into jobs, under their ids; return how many were taken there."""
    tasks = apps.get_model("django_tasks_database", "DBTaskResult").objects
    waiting = tasks.select_for_update(skip_locked=True).filter(status="READY", backend_name="default")
    batch = list(waiting.order_by("enqueued_at")[:limit])
    for old in batch:
        try:
            task = old.task
            if policy := getattr(task, "unique", None):
                # What was enqueued here since is newer: it is neither replaced nor an error.
                task = task.using(unique=replace(policy, on_conflict="ignore"))
            task.get_backend().enqueue(task, old.args_kwargs["args"], old.args_kwargs["kwargs"], id=old.pk)
        except JobIdTaken:
            pass  # moved before, into another database
        except Exception as error:
            error.add_note(f"It is about the task {old.pk} of {old.task_path}; nothing of this batch was moved.")
            raise
    tasks.filter(pk__in=[old.pk for old in batch]).delete()
    return len(batch)
