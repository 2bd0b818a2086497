"""`Job.objects`: enqueue and remove jobs, explain an enqueue, find duplicates.

The first call imports what it needs of `enqueue`, so that `django.setup()` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Never, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, models

from ..db.clock import database_now
from ..enqueue.results import BulkEnqueueResult, EnqueueResult, ItemResult, JobT
from ..exceptions import InvalidRequest
from ..ojs.limits import Limit
from ..ojs.retry import RetryPolicy
from ..operations.queryset import ChangeableQuerySet
from ..options import INHERIT, OBJECT
from ..unique.keys import KeyMode, KeyScope
from ..unique.policy import UniquePolicy

if TYPE_CHECKING:
    from ..enqueue.explain import Explanation
    from ..enqueue.request import Request


def only_enqueued(call: str) -> InvalidRequest:
    """Return the error for a job that would be stored without an enqueue; ``call`` is the one to write instead."""
    return InvalidRequest(
        "A job is stored by its enqueue only: otherwise its arguments are not checked, no policy counts, and no worker"
        f" is woken. Write Job.objects.{call}."
    )


class JobQuerySet(ChangeableQuerySet[JobT]):
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
        delay: str | timedelta | float | None = None,
        expires_at: datetime | None = None,
        unique: UniquePolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        retry: RetryPolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        timeout: str | timedelta | float | None = INHERIT,  # type: ignore[assignment]
        limit: Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None = INHERIT,  # type: ignore[assignment]
        tags: Collection[str] = (),
        key: str | None = None,
        key_mode: KeyMode | str = KeyMode.REPLACE,
        key_scope: KeyScope | str = KeyScope.TYPE,
        id: UUID | str | None = None,
        **unknown: Never,
    ) -> EnqueueResult[JobT]:
        """Enqueue a job in the caller's transaction, unless it duplicates one (OJS unique jobs).

        ``args``: an object (keyword arguments) or an array (positional), at most 1 MiB as JSON.
        ``meta``: an object that is stored with the job; ``tags``: strings.
        ``queue``, ``priority`` (-100 to 100), ``unique``, ``retry``, ``timeout`` (of one attempt: ISO 8601, a timedelta
        or seconds) and ``limit`` (a `Limit` or several: how many jobs of a partition run at once, or start) are by
        default those of the type's ``@job``. None switches ``unique``, ``timeout`` and ``limit`` off, and gives
        ``retry`` its default of 3 attempts.
        ``scheduled_at``, ``expires_at``: aware datetimes; the job starts not before the first and not after the second.
        ``delay``, instead of ``scheduled_at``: how long to wait from now; ISO 8601, a timedelta or seconds.
        ``key``: a name for the job, of up to 512 characters, instead of ``unique``. ``key_mode`` says what an enqueue
        does while another job holds the key: ``replace`` rewrites the waiting job; ``preserve_run_at`` rewrites it but
        keeps its time; both join ``args`` that are two arrays. If the job is running, it loses the key and gets no
        further run, and a new job is created. ``unsafe_dedupe`` returns the job in any state and stores nothing, so the
        work of the enqueue may never be done. ``key_scope``: the key is unique within the ``type``, or ``global``.
        ``id``: a UUID; by default a new UUIDv7.

        Return an `EnqueueResult`. Raise DuplicateJob when a duplicate exists and ``on_conflict`` is ``reject``;
        InvalidRequest, InvalidPolicy or InvalidRetryPolicy before anything is written; JobIdTaken when the id is in
        use. None of them breaks the caller's transaction.
        """
        from ..enqueue.request import Request, refuse_unknown

        if unknown:
            refuse_unknown("enqueue", type, unknown)
        request = Request(
            type=type,
            args=args,
            queue=queue,
            meta=meta,
            priority=priority,
            scheduled_at=scheduled_at,
            delay=delay,
            expires_at=expires_at,
            unique=unique,
            retry=retry,
            timeout=timeout,
            limit=limit,
            tags=tags,
            key=key,
            key_mode=key_mode,
            key_scope=key_scope,
            id=id,
        )
        return self.enqueue_request(request)

    def enqueue_request(self, request: Request) -> EnqueueResult[JobT]:
        """Do what `enqueue` does, for a `Request`, which has more members than `enqueue` has arguments."""
        from ..enqueue.new_job import read
        from ..enqueue.submit import enqueue

        using = self._for_writing()
        new_job = read(request, self.model, database_now(using))
        return enqueue(self._everything(using), new_job)

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
        ``default``, even if a router stores the jobs elsewhere. Without a transaction there, it enqueues at once.

        A ``delay`` counts from the enqueue after the commit.
        An invalid request is raised here, as by `enqueue`. A DuplicateJob is never raised but logged at INFO. Any other
        failure after a commit is logged at ERROR, because nobody could catch it.
        """
        from ..enqueue.new_job import read
        from ..enqueue.on_commit import after_commit
        from ..enqueue.request import Request, own_members, refuse_unknown

        refuse_unknown("enqueue_on_commit", type, options)
        request = own_members(Request(type=type, args=args, **options))
        using = self._for_writing()
        read(request, self.model, database_now(using))
        enqueue = partial(self._everything(using).enqueue_request, request)
        waits_for = commit_of if commit_of is not None else self._db or DEFAULT_DB_ALIAS  # type: ignore[attr-defined]
        after_commit(waits_for, using, request.type, enqueue)

    def enqueue_many(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        mode: str = "partial",
        each: Callable[[ItemResult[JobT]], Any] | None = None,
    ) -> BulkEnqueueResult[JobT]:
        """Enqueue many jobs with a few statements per thousand; the results are those of single enqueues.

        ``items``: objects with the arguments of `enqueue`, as in ``{"type": "email.send", "args": {"user_id": 42}}``;
        an earlier item counts as a duplicate of a later one. `Handler.item` makes them.
        ``mode``: ``partial`` stores at most a thousand in a transaction, or all in the caller's. A refused or invalid
        item gets a result with an ``error``, and the others are stored. ``atomic`` keeps the batch in memory and stores
        all of it or nothing: it raises the error of the first invalid item, else that of the first refused one.
        ``each`` is called with every result, and no result is kept: memory does not depend on the number of items.

        Return a `BulkEnqueueResult`: an `ItemResult` for each item, in order, and the ``counts`` by outcome. Raises
        InvalidRequest for an unknown mode; in ``atomic`` also what `enqueue` raises, with the index of the item in its
        message and its details.
        """
        from ..enqueue.bulk import enqueue_many

        return enqueue_many(self._everything(self._for_writing()), items, mode, each)

    def remove(self, *, key: str, type: str | None = None, key_scope: KeyScope | str | None = None) -> JobT | None:
        """Remove the job that holds a key, and return it; None when no job does (Graphile Worker, "Removing jobs").

        A waiting or permanently failed job is deleted. A running one stays, but loses its key and gets no further run.
        ``type`` and ``key_scope`` are needed only when several jobs hold the key; without them that is InvalidRequest.
        """
        from ..enqueue.remove import remove
        from ..handlers.carried import capture

        removed: Any = remove(self._everything(self._for_writing()), key, type, key_scope, capture())
        return removed  # type: ignore[no-any-return]

    @overload
    def explain(self, type: str, args: Any = None, **options: Any) -> Explanation: ...
    @overload
    def explain(self, type: None = None, args: None = None, **options: Any) -> str: ...
    def explain(self, type: str | None = None, args: Any = None, **options: Any) -> Explanation | str:
        """Say what ``enqueue(type, args, **options)`` would do now, and why; nothing is written.

        ``context``: what the job would carry elsewhere, by the names of classes in ``CONTEXT``, as in
        ``{"tenant": {"schema_name": "acme"}}``; None for a name: nothing. What is not named is captured here.

        It reads the database that an enqueue would write to, because a replica may be behind.

        Return an `Explanation` with the fingerprint, the canonical text, and the current duplicates with the end of
        their windows. Raises what `enqueue` would raise for an invalid request. Without a type this is Django's own
        `QuerySet.explain`, the database's query plan.
        """
        if type is None:
            return super().explain(**options)
        from ..enqueue.request import Request, refuse_unknown
        from ..handlers.carried import capture

        given = options.pop("context", None)
        refuse_unknown("explain", type, options)
        carried = {} if given is None else {"context": capture(OBJECT.read(given, "context"))}
        return self.explain_request(Request(type=type, args=args, elsewhere=True, **carried, **options))

    def explain_request(self, request: Request, replaceable: models.QuerySet[Any] | None = None) -> Explanation:
        """Do what `explain` does, for a `Request`. ``replaceable``: the only jobs that it may replace, if not any."""
        from ..enqueue.errors import naming_what_is_missing
        from ..enqueue.explain import explain
        from ..enqueue.new_job import read

        jobs = self._everything(self._for_writing())
        now = database_now(jobs.db)
        new_job = read(request, self.model, now)
        new_job.replaceable = replaceable
        with naming_what_is_missing(jobs):
            return explain(jobs, new_job, now)

    def duplicates_of(
        self,
        job_or_fingerprint: models.Model | str,
        policy: UniquePolicy | Mapping[str, Any] | None = None,
    ) -> JobQuerySet[JobT]:
        """Select the stored jobs that duplicate a job (itself left out) or a fingerprint now, the newest first.

        ``policy`` says which states and which period count. The default is the job's own policy; for a fingerprint, the
        default states without a period. A job without a fingerprint has no duplicates.
        """
        from ..enqueue.duplicates import duplicates_of

        jobs = self._everything(self.db)
        itself: Any = None
        if isinstance(job_or_fingerprint, str):
            fingerprint, own_policy = job_or_fingerprint, None
        elif isinstance(job_or_fingerprint, self.model):
            itself = job_or_fingerprint
            fingerprint, own_policy = itself.fingerprint or "", itself.unique_policy
        else:
            raise InvalidRequest.at("job_or_fingerprint", "must be a Job or a fingerprint", value=job_or_fingerprint)
        chosen = UniquePolicy.parse(policy) if policy is not None else own_policy or UniquePolicy()
        found = duplicates_of(jobs, fingerprint, chosen, database_now(jobs.db))
        return found if itself is None else found.exclude(pk=itself.pk)

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> Never:
        """Raise InvalidRequest: new jobs are stored by `enqueue_many`."""
        raise only_enqueued("enqueue_many([...])")

    async def aenqueue(
        self, type: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **options: Any
    ) -> EnqueueResult[JobT]:
        """Do what `enqueue` does, from asynchronous code, in one call of `sync_to_async`."""
        return await sync_to_async(self.enqueue)(type, args, **options)

    async def aenqueue_many(self, items: Iterable[Mapping[str, Any]], **options: Any) -> BulkEnqueueResult[JobT]:
        """Do what `enqueue_many` does, from asynchronous code; ``items`` and ``each`` are synchronous."""
        return await sync_to_async(self.enqueue_many)(items, **options)

    async def aremove(
        self, *, key: str, type: str | None = None, key_scope: KeyScope | str | None = None
    ) -> JobT | None:
        """Do what `remove` does, from asynchronous code."""
        return await sync_to_async(self.remove)(key=key, type=type, key_scope=key_scope)

    @overload
    async def aexplain(self, type: str, args: Any = None, **options: Any) -> Explanation: ...
    @overload
    async def aexplain(self, type: None = None, args: None = None, **options: Any) -> str: ...
    async def aexplain(self, type: str | None = None, args: Any = None, **options: Any) -> Explanation | str:
        """Do what `explain` does, from asynchronous code."""
        return await sync_to_async(self.explain)(type, args, **options)  # type: ignore[arg-type]


if TYPE_CHECKING:  # type checkers do not follow `from_queryset`

    class JobManager(JobQuerySet[JobT], models.Manager[JobT]):  # type: ignore[misc]
        """The manager of `Job`."""

        def __get__(self, instance: Any, cls: type[Any] | None = None) -> JobManager[JobT]: ...
        def using(self, alias: str | None) -> JobQuerySet[JobT]: ...  # type: ignore[override]

else:

    class JobManager(models.Manager.from_queryset(JobQuerySet)):
        """The manager of `Job`."""
