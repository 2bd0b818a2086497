"""`Job.objects`: enqueue, explain, and the questions that operators ask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections, models, router
from django.db.models import Q
from django.utils import timezone

from . import explain as explaining
from .admission import insert_rows
from .after_commit import after_commit
from .batch import enqueue_all, enqueue_in_parts
from .conf import settings
from .enqueue import enqueue, saying_what_is_not_migrated
from .exceptions import InvalidRequest, did_you_mean, shorten
from .fields import unsaved
from .keyed import remove
from .ojs.fingerprint import canonical_key, fingerprint
from .ojs.keys import JobKey, KeyMode, KeyScope
from .ojs.names import job_type
from .ojs.policy import UniquePolicy
from .ojs.retry import RetryPolicy
from .outcomes import BatchResult, EnqueueResult, ItemResult, Suppression
from .request import INHERIT, Request, own, read

if TYPE_CHECKING:
    from .models import Job

_MODES = {"partial": enqueue_in_parts, "atomic": enqueue_all}


class JobQuerySet(models.QuerySet["Job"]):
    """Jobs. Filters do not limit `enqueue`, `explain` and `duplicates_of`; the database of `using()` does."""

    def enqueue(
        self,
        type: str,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        queue: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: int | None = None,
        scheduled_at: datetime | None = None,
        expires_at: datetime | None = None,
        unique: UniquePolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        retry: RetryPolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        timeout: str | timedelta | float | None = INHERIT,  # type: ignore[assignment]
        tags: Collection[str] = (),
        key: str | None = None,
        key_mode: KeyMode | str = KeyMode.REPLACE,
        key_scope: KeyScope | str = KeyScope.TYPE,
        id: UUID | str | None = None,
    ) -> EnqueueResult:
        """Enqueue a job in the caller's transaction, unless it duplicates one (OJS unique jobs).

        ``args``: an object (keyword arguments) or an array (positional), at most 1 MiB as JSON.
        ``meta``: an object that travels with the job; ``tags``: strings.
        By default ``queue``, ``priority`` (-100 to 100), ``unique``, ``retry`` and ``timeout`` (of one attempt: ISO
        8601, timedelta or seconds) are what the type's ``@job`` declared. None switches ``unique`` and ``timeout``
        off, and gives ``retry`` its default of 3 attempts.
        ``scheduled_at``, ``expires_at``: aware datetimes; run not before the one, and not start after the other.
        ``key``: a name for the job, of up to 512 characters, in the place of ``unique``. While a job holds it, another
        enqueue with the key does what ``key_mode`` says: ``replace`` rewrites the waiting job, ``preserve_run_at`` all
        of it but its time, and two arrays as ``args`` are joined; ``unsafe_dedupe`` answers with the job whatever its
        condition, and so can lose what the enqueue was about. A running job loses the key and its further attempts,
        and a new one is created. ``key_scope``: the key counts within the ``type``, or is ``global``.
        ``id``: a UUID; by default a new UUIDv7.

        Return an `EnqueueResult`. Raise DuplicateJob when a duplicate exists and ``on_conflict`` is ``reject``;
        InvalidRequest, InvalidPolicy or InvalidRetryPolicy before anything is written; JobIdTaken when the id is in
        use. None of them breaks the caller's transaction.
        """
        request = Request(
            type=type,
            args=args,
            queue=queue,
            meta=meta,
            priority=priority,
            scheduled_at=scheduled_at,
            expires_at=expires_at,
            unique=unique,
            retry=retry,
            timeout=timeout,
            tags=tags,
            key=key,
            key_mode=key_mode,
            key_scope=key_scope,
            id=id,
        )
        return self.enqueue_request(request)

    def enqueue_request(self, request: Request) -> EnqueueResult:
        """Do what `enqueue` does, with what it was asked in one object; that may say more than its arguments."""
        using = self._for_writing()
        incoming = read(request, self.model, timezone.now())
        return enqueue(self._everything(using), incoming, partial(record_suppressed, using))

    def enqueue_on_commit(
        self,
        type: str,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        commit_of: str | None = None,
        **options: Any,
    ) -> None:
        """Do what `enqueue` does once the current transaction is committed; nothing if it is rolled back.

        ``commit_of``: the alias of the database whose commit to wait for; by default that of `using()`, else
        ``default``, wherever a router keeps the jobs. Outside of a transaction there the job is enqueued at once.

        What `enqueue` would raise before it writes is raised here. Later nobody could catch it: a DuplicateJob is
        logged at INFO, never raised, and any other failure after a commit is logged at ERROR.
        """
        inspect.signature(JobQuerySet.enqueue).bind(self, type, args, **options)
        request = own(Request(type=type, args=args, **options))
        read(request, self.model, timezone.now())
        using = self._for_writing()
        enqueue = partial(self._everything(using).enqueue_request, request)
        waits_for = commit_of if commit_of is not None else self._db or DEFAULT_DB_ALIAS  # type: ignore[attr-defined]
        after_commit(waits_for, using, request.type, enqueue)

    def enqueue_many(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        mode: str = "partial",
        each: Callable[[ItemResult], Any] | None = None,
    ) -> BatchResult:
        """Enqueue many jobs, by a constant number of statements per thousand; the answers are those of one by one.

        ``items``: objects with the arguments of `enqueue`, as in ``{"type": "email.send", "args": {"user_id": 42}}``;
        an earlier item counts as a duplicate of a later one. `Handler.item` makes them.
        ``mode``: in ``partial`` each thousand has a transaction of its own, unless the caller has one, and an item that
        is refused or invalid is an answer with an ``error``, beside which the others go on; in ``atomic`` the batch,
        which is kept in memory, is stored as a whole or not at all: then the error of the first invalid item is raised,
        else that of the first refused one.
        ``each`` is called with every answer, and then none is kept: memory does not depend on the number of items.

        Return a `BatchResult`: an `ItemResult` for each item, in order, and the ``counts`` by outcome. Raises
        InvalidRequest for another mode, and in ``atomic`` what `enqueue` raises, its message and its details naming the
        index of the item.
        """
        if not isinstance(mode, str) or mode not in _MODES:
            raise InvalidRequest.at("mode", "is not a known choice", value=mode, mend=did_you_mean(mode, _MODES))
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            mend = f"Write [{shorten(items)}]." if isinstance(items, Mapping) else "Write [{'type': ...}, ...]."
            raise InvalidRequest.at("items", "must be a list or an iterator of objects", value=items, mend=mend)
        if each is not None and not callable(each):
            raise InvalidRequest.at("each", "must be a function that takes one answer", value=each)
        using = self._for_writing()
        result = BatchResult()
        for answer in _MODES[mode](self._everything(using), items, partial(record_suppressed, using)):
            result.counts[answer.outcome] += 1
            if each is None:
                result.results.append(answer)
            else:
                each(answer)
        return result

    def remove(self, *, key: str, type: str | None = None, key_scope: KeyScope | str | None = None) -> Job | None:
        """Remove the job that holds a key, and return it; None when no job does (Graphile Worker, "Removing jobs").

        A waiting or permanently failed job is deleted. A running one stays, but loses its key and its further attempts.
        ``type`` and ``key_scope`` are needed only when several jobs hold the key; InvalidRequest says so then.
        """
        named = JobKey(key, scope=KeyScope.TYPE if key_scope is None else key_scope)
        which = Q() if type is None else Q(type=job_type(type))
        if key_scope is not None:
            in_all = Q(fingerprint=fingerprint(canonical_key(named.text, type=None)))
            which &= in_all if named.scope is KeyScope.GLOBAL else ~in_all
        return remove(self._everything(self._for_writing()), named.text, which)

    @overload
    def explain(self, type: str, args: Any = None, **options: Any) -> explaining.Explanation: ...
    @overload
    def explain(self, type: None = None, args: None = None, **options: Any) -> str: ...
    def explain(self, type: str | None = None, args: Any = None, **options: Any) -> explaining.Explanation | str:
        """Say what ``enqueue(type, args, **options)`` would do now, and why; nothing is written.

        It looks where an enqueue would write: a replica may not know yet.

        Return an `Explanation` with the fingerprint, the canonical text, and the current duplicates with the end of
        their windows. Raises what `enqueue` would raise for an invalid request. Without a type this is Django's own
        `QuerySet.explain`, the database's query plan.
        """
        if type is None:
            return super().explain(**options)
        if unknown := options.keys() - Request.__slots__:
            raise TypeError(f"explain() has no option {sorted(unknown)[0]!r}: it takes those of enqueue().")
        return self.explain_request(Request(type=type, args=args, **options))

    def explain_request(self, request: Request) -> explaining.Explanation:
        """Do what `explain` does, with the question in one object."""
        now = timezone.now()
        incoming = read(request, self.model, now)
        jobs = self._everything(self._for_writing())
        with saying_what_is_not_migrated(jobs):
            return explaining.explain(jobs, incoming, now)

    def duplicates_of(
        self,
        job_or_fingerprint: Job | str,
        policy: UniquePolicy | Mapping[str, Any] | None = None,
    ) -> JobQuerySet:
        """Select the stored jobs that duplicate a job (itself left out) or a fingerprint now, the newest first.

        ``policy`` says which states and what period count; by default the job's own, for a fingerprint the default
        states without a period. A job without a fingerprint has no duplicates.
        """
        jobs = self._everything(self.db)
        if isinstance(job_or_fingerprint, str):
            fingerprint, own, itself = job_or_fingerprint, None, None
        elif isinstance(job_or_fingerprint, self.model):
            itself = job_or_fingerprint
            fingerprint, own = itself.fingerprint or "", itself.unique_policy
        else:
            raise InvalidRequest.at("job_or_fingerprint", "must be a Job or a fingerprint", value=job_or_fingerprint)
        chosen = UniquePolicy.parse(policy) if policy is not None else own or UniquePolicy()
        found = explaining.duplicates_of(jobs, fingerprint, chosen, timezone.now())
        return found if itself is None else found.exclude(pk=itself.pk)

    async def aenqueue(
        self, type: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **options: Any
    ) -> EnqueueResult:
        """Do what `enqueue` does, from asynchronous code: in one call on the thread of synchronous code."""
        return await sync_to_async(self.enqueue)(type, args, **options)

    async def aenqueue_many(self, items: Iterable[Mapping[str, Any]], **options: Any) -> BatchResult:
        """Do what `enqueue_many` does, from asynchronous code; ``items`` and ``each`` are synchronous."""
        return await sync_to_async(self.enqueue_many)(items, **options)

    async def aremove(
        self, *, key: str, type: str | None = None, key_scope: KeyScope | str | None = None
    ) -> Job | None:
        """Do what `remove` does, from asynchronous code."""
        return await sync_to_async(self.remove)(key=key, type=type, key_scope=key_scope)

    @overload
    async def aexplain(self, type: str, args: Any = None, **options: Any) -> explaining.Explanation: ...
    @overload
    async def aexplain(self, type: None = None, args: None = None, **options: Any) -> str: ...
    async def aexplain(self, type: str | None = None, args: Any = None, **options: Any) -> explaining.Explanation | str:
        """Do what `explain` does, from asynchronous code."""
        return await sync_to_async(self.explain)(type, args, **options)  # type: ignore[arg-type]

    def _for_writing(self) -> str:
        return self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]

    def _everything(self, using: str) -> JobQuerySet:
        return type(self)(self.model, using=using)


if TYPE_CHECKING:  # type checkers do not follow `from_queryset`

    class JobManager(JobQuerySet, models.Manager["Job"]):  # type: ignore[misc]
        """The manager of `Job`."""

        def __get__(self, instance: Any, cls: type[Any] | None = None) -> JobManager: ...
        def using(self, alias: str | None) -> JobQuerySet: ...  # type: ignore[override]

else:

    class JobManager(models.Manager.from_queryset(JobQuerySet)):
        """The manager of `Job`."""


def record_suppressed(using: str, suppressions: Iterable[Suppression]) -> None:
    """Note which enqueues met which stored jobs, unless ``OJS_UNIQUE["RECORD_SUPPRESSED"]`` is off."""
    if not settings.record_suppressed:
        return
    model = apps.get_model("django_ojs_unique", "SuppressedAttempt")
    attempts = [
        unsaved(
            model,
            created_at=job.created_at,
            outcome=outcome,
            on_conflict=on_conflict,
            fingerprint=job.fingerprint,
            type=job.type,
            queue=job.queue,
            args=job.args,
            meta=job.meta,
            existing_job_id=existing.pk,
            existing_state=existing.state,
            job_id=job.pk if outcome == "replaced" else None,
        )
        for job, on_conflict, met, outcome in suppressions
        for existing in met
    ]
    insert_rows(attempts, connections[using])
