"""Resolved options: what the requests of one type, queue and options have in common, computed once per process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from django.db import models

from ..conf import settings
from ..db.fields import SharedJSON, unsaved
from ..exceptions import InvalidRequest, nearest
from ..handlers.registry import Definition, registry
from ..ojs.durations import milliseconds
from ..ojs.limits import Limit
from ..ojs.names import job_type, priority_number, queue_name
from ..ojs.retry import RetryPolicy
from ..ojs.states import TERMINAL
from ..unique.keys import HOLDING, KeyMode, KeyScope
from ..unique.policy import UniquePolicy, Window
from ..unique.presets import resque_uniqueue
from . import INHERIT
from .request import Request

DEFAULT_RETRY: Final = RetryPolicy()
MOST_OPTIONS = 1_000

logger = logging.getLogger("django_ojs_unique.enqueue")

_MOST_WARNED_OF = 1_000
_warned_of: set[str] = set()


class ResolvedOptions:
    """What requests of the same type, queue and options have in common.

    ``values``: the fields of their jobs that are the same. ``met_duplicate``: whether the last enqueue met a duplicate.
    """

    def __init__(self, request: Request, model: type[models.Model]) -> None:
        self.met_duplicate = False
        type_ = _type_of(request)
        self.definition = definition = registry.get(type_) if settings.require_handler else registry.find(type_)
        if definition is None and not request.elsewhere and type_ not in _warned_of:
            _warn_of(type_)
        queue = request.queue
        if queue is None:
            queue = (definition and definition.queue) or settings.default_queue
        queue = queue_name(queue)
        unique = (definition and definition.unique) if request.unique is INHERIT else request.unique
        retry = (definition and definition.retry) if request.retry is INHERIT else request.retry
        timeout = (definition and definition.timeout) if request.timeout is INHERIT else request.timeout
        lease = (definition and definition.lease) if request.lease is INHERIT else request.lease
        self.limits: tuple[Limit, ...] = definition.limits if request.limit is INHERIT and definition else ()
        if request.limit is not INHERIT:
            self.limits = request.limit
        self.fair_by = settings.fair_queues.get(queue)
        priority = request.priority if request.priority is not None else definition.priority if definition else 0
        _refuse_what_contradicts_the_key(request)
        self.policy = None if request.key is not None or unique is None else UniquePolicy.parse(unique)
        if self.policy is None and request.key is None and settings.is_unique(queue):
            self.policy = resque_uniqueue()
        retry_policy = DEFAULT_RETRY if retry is None else RetryPolicy.parse(retry)
        self._model = model
        self._retry = None if retry is None else retry_policy
        self.values: dict[str, Any] = {
            "type": type_,
            "queue": queue,
            "priority": priority_number(priority),
            "max_attempts": retry_policy.max_attempts,
            "retry_options": None if retry is None else SharedJSON(retry_policy.to_dict()),
            "timeout_ms": None if timeout is None else milliseconds(timeout, "timeout"),
            "visibility_timeout_ms": None if lease is None else milliseconds(lease, "lease"),
            "unique": None if self.policy is None else SharedJSON(self.policy.to_dict()),
        }
        self.unique_states: frozenset[Any] = frozenset()
        if request.key is not None:
            self.unique_states = HOLDING
        elif self.policy is not None:
            self.unique_states = self.policy.unique_states
        self.has_window = (
            self.policy is not None
            and not TERMINAL.isdisjoint(self.policy.states)
            and self.policy.window != Window.RETENTION
        )

    def row(self, values: Mapping[str, Any]) -> Any:
        """Return an unsaved row with the values, and with objects of its own for all that can be changed."""
        own: dict[str, Any] = {"tags": [], "extra": {}, "steps": [], "errors": [], **values}
        own["unique"] = None if self.policy is None else self.policy.to_dict()
        own["retry_options"] = None if self._retry is None else self._retry.to_dict()
        return unsaved(self._model, **own)


class OptionsCache:
    """The shapes of one model under one state of the settings."""

    def __init__(self, model: type[models.Model]) -> None:
        self.largest_args = settings.max_args_bytes
        self.largest_meta = settings.max_meta_bytes
        self._model = model
        self._known: dict[Any, ResolvedOptions] = {}

    def of(self, request: Request) -> ResolvedOptions:
        """Return the shape of a request. Raises what `read` raises about a request's type, queue and options."""
        try:
            # The types belong to it, because True equals 1 but is no valid priority.
            factor = getattr(request.retry, "backoff_coefficient", None)
            values = request.priority, request.timeout, request.lease, factor
            identity = (
                (request.type, request.queue, request.unique, request.retry, request.limit, request.elsewhere),
                (request.key is None, request.key_mode, request.key_scope),
                (values, *map(type, values)),
            )
            options = self._known.get(identity)
        except TypeError:  # an option that is not hashable is invalid: Shape raises the error
            return ResolvedOptions(request, self._model)
        if options is None or options.definition is not registry.find(request.type):
            if len(self._known) >= MOST_OPTIONS:
                self._known.clear()
            options = self._known[identity] = ResolvedOptions(request, self._model)
        return options


_current: dict[type[models.Model], tuple[Any, OptionsCache]] = {}


def options_cache(model: type[models.Model]) -> OptionsCache:
    """Return the shapes under the current settings."""
    given = settings.given
    seen, cache = _current.get(model, (None, None))
    if cache is None or seen != given:
        cache = OptionsCache(model)
        _current[model] = deepcopy(given), cache
    return cache


def forget_options() -> None:
    """Forget what this process has computed, and whether the last enqueues met duplicates."""
    _current.clear()


def _type_of(request: Request) -> str:
    definition = getattr(request.type, "definition", None)
    if isinstance(definition, Definition):
        hint = f"Write {definition.type!r}, or call the handler's own enqueue(...) with its arguments."
        raise InvalidRequest.at("type", "must be the name of a job type, not its handler", hint=hint)
    return job_type(request.type)


def _warn_of(type: str) -> None:
    """Warn once in this process that a type has no handler here; of at most 1,000 types, as callers may invent them."""
    if len(_warned_of) < _MOST_WARNED_OF:
        _warned_of.add(type)
        close = nearest(type, registry)
        meant = f" Did you mean {close!r}?" if close else ""
        logger.warning("Job type %r has no handler here: its jobs wait for a worker that has one.%s", type, meant)


def _refuse_what_contradicts_the_key(request: Request) -> None:
    if request.key is not None:
        if request.unique is not INHERIT and request.unique is not None:
            raise InvalidRequest.at(
                "key",
                "cannot be combined with unique, as each says on its own what a duplicate is",
                value=request.key,
                hint="Leave one of them out.",
            )
        return
    for name, default in (("key_mode", KeyMode.REPLACE), ("key_scope", KeyScope.TYPE)):
        if (given := getattr(request, name)) != default:
            raise InvalidRequest.at(name, "has no effect without a key", value=given, hint="Give the job a key.")
