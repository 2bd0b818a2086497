"""Refuse direct writes to the fields that only the lifecycle writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..exceptions import InvalidRequest
from ..lifecycle import OWNED
from ..ojs.states import JobState

_TIMES = "job.retry() or Job.objects.filter(...).retry() makes it due now; for another time, cancel it and enqueue."
_MOVES = "call job.cancel() or job.retry(), or the same on Job.objects.filter(...)"
_WAYS = {
    "state": f"To move jobs, {_MOVES}. A worker does the rest; in a test, run_jobs().",
    "attempt": "job.retry() or Job.objects.filter(...).retry() gives a finished job all its attempts again.",
    "run_at": _TIMES,
    "enqueued_at": _TIMES,
    "finished_at": "job.cancel() or Job.objects.filter(...).cancel() ends a job; prunejobs deletes old ones.",
    "fingerprint": "job.release_unique_key() takes a job out of uniqueness.",
    "unique_states": "job.release_unique_key() takes a job out of uniqueness.",
    "unique": "Enqueue with another policy; `manage.py jobs rekey` gives waiting jobs the policy of their handlers.",
    "key": "Job.objects.remove(key=...) removes the job of a key; an enqueue with the key rewrites a waiting job.",
}
_LEASES = "Only the worker that runs the job writes it; job.cancel() or Job.objects.filter(...).cancel() ends the job."
_BY_STATE = {
    JobState.CANCELLED: "Call job.cancel() or Job.objects.filter(...).cancel().",
    JobState.AVAILABLE: "Call job.retry() or Job.objects.filter(...).retry().",
}
_ALONE = "is not written by itself: the other fields of the job would contradict it, and no signal would be sent"
_IN_A_TEST = "Only a test that needs a broken row writes it, with Job._base_manager."


def refuse_owned(changes: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if one of these fields is owned, and say what to call instead."""
    for name, value in changes.items():
        if (field := name.removesuffix("_id") if name == "replaced_by_id" else name) in OWNED:
            raise _refusal(field, value, _ALONE)


def writable_fields(job: Any, using: str, names: Iterable[str] | None = None) -> list[str]:
    """Return those of the named fields of a job, by default of all loaded ones, that are saved: no owned ones.

    Raise InvalidRequest if the object has another value of an owned field than its row. Django names owned ones, too.
    """
    loaded = {
        field.name: field for field in job._meta.concrete_fields if field.attname not in job.get_deferred_fields()
    }
    chosen = set(names) if names is not None else {name for name, field in loaded.items() if not field.primary_key}
    owned = [field.attname for field in loaded.values() if field.name in OWNED and {field.name, field.attname} & chosen]
    row = type(job)._base_manager.using(using).filter(pk=job.pk).values(*owned).first() if owned else None
    for name, stored in (row or {}).items():
        if stored != (value := getattr(job, name)):
            problem = f"is {stored!s} in the database, and save() does not change it"
            raise _refusal(name, value, problem, " To save other fields, write save(update_fields=[...]).")
    return sorted(chosen.difference(OWNED, owned))


def _refusal(field: str, value: Any, problem: str, hint: str = "") -> InvalidRequest:
    way = _BY_STATE.get(value) if field == "state" and isinstance(value, str) else None  # type: ignore[call-overload]
    return InvalidRequest.at(field, problem, hint=f"{way or _WAYS.get(field, _LEASES)}{hint} {_IN_A_TEST}")
