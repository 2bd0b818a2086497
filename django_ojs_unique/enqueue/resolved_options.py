"""Resolved options: what the requests of one type, queue and options have in common, computed once per process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from operator import attrgetter
from typing import Any, Final

from django.db import models

from ..conf import settings
from ..db.fast.rows import SharedJSON, unsaved
from ..exceptions import InvalidRequest, nearest
from ..handlers.registry import Definition, registry
from ..ojs.limits import Limit
from ..ojs.names import job_type, queue_name
from ..ojs.retry import RetryPolicy
from ..ojs.states import TERMINAL
from ..options import DECLARED, INHERIT, LENGTH, OPTIONS, PRIORITY, RETRY, UNIQUE, declared
from ..unique.keys import HOLDING
from ..unique.policy import UniquePolicy, Window
from ..unique.presets import resque_uniqueue
from .request import Request

DEFAULT_RETRY: Final = RetryPolicy()
NOTHING_DECLARED: Final = declared({})
MOST_OPTIONS = 1_000

logger = logging.getLogger("django_ojs_unique.enqueue")

_numbers = attrgetter(*(name for name, option in DECLARED.items() if option.kind in (PRIORITY, LENGTH)))
_others = attrgetter(
    "type",
    "elsewhere",
    "key_mode",
    "key_scope",
    *(name for name, option in DECLARED.items() if option.kind not in (PRIORITY, LENGTH)),
)
_MOST_WARNED_OF = 1_000
_warned_of: set[str] = set()


class ResolvedOptions:
    """What requests of the same type, queue and options have in common.

    ``values``: the fields of their jobs that are the same. ``met_duplicate``: whether the last enqueue met a duplicate.
    """

    def __init__(self, request: Request, model: type[models.Model]) -> None:
        self.met_duplicate = False
        type_ = _type_of(request)
        # The next job of a workflow was accepted with the workflow, perhaps by a newer version of the program.
        is_required = settings.require_handler and request.workflow_id is None
        self.definition = definition = registry.get(type_) if is_required else registry.find(type_)
        if definition is None and not request.elsewhere and type_ not in _warned_of:
            _warn_of(type_)
        found = _resolve(request, definition)
        self.limits: tuple[Limit, ...] = found["limit"]
        self.fair_by = settings.fair_queues.get(found["queue"])
        if request.key is not None:
            found["unique"] = None
        elif found["unique"] is None and settings.is_unique(found["queue"]):
            found["unique"] = resque_uniqueue()
        self.policy: UniquePolicy | None = found["unique"]
        self._model = model
        self._retry: RetryPolicy | None = found["retry"]
        self.values: dict[str, Any] = {
            option.column: _shared(option.kind.dump(found[name]))
            for name, option in DECLARED.items()
            if name != "limit"
        }
        self.values["type"] = type_
        self.values["max_attempts"] = (self._retry or DEFAULT_RETRY).max_attempts
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
        own["unique"], own["retry_options"] = UNIQUE.dump(self.policy), RETRY.dump(self._retry)
        return unsaved(self._model, **own)


class OptionsCache:
    """The resolved options of one model under one state of the settings."""

    def __init__(self, model: type[models.Model]) -> None:
        self.largest_args = settings.max_args_bytes
        self.largest_meta = settings.max_meta_bytes
        self._model = model
        self._known: dict[Any, ResolvedOptions] = {}

    def of(self, request: Request) -> ResolvedOptions:
        """Return the resolved options of a request. Raises what `read` raises about its type, queue and options."""
        try:
            # The types belong to it, because True equals 1 but is no valid priority.
            numbers = *_numbers(request), getattr(request.retry, "backoff_coefficient", None)
            identity = *_others(request), request.key is None, numbers, *map(type, numbers)
            options = self._known.get(identity)
        except TypeError:  # an option that is not hashable is invalid: `ResolvedOptions` raises the error
            return ResolvedOptions(request, self._model)
        if options is None or options.definition is not registry.find(request.type):
            if len(self._known) >= MOST_OPTIONS:
                self._known.clear()
            options = ResolvedOptions(request, self._model)
            if options.definition is None and settings.require_handler:  # only for a job of a workflow
                return options
            self._known[identity] = options
        return options


_current: dict[type[models.Model], tuple[Any, OptionsCache]] = {}


def options_cache(model: type[models.Model]) -> OptionsCache:
    """Return the cache under the current settings."""
    given = settings.given
    seen, cache = _current.get(model, (None, None))
    if cache is None or seen != given:
        cache = OptionsCache(model)
        _current[model] = deepcopy(given), cache
    return cache


def forget_options() -> None:
    """Forget what this process has computed, and whether the last enqueues met duplicates."""
    _current.clear()


def _resolve(request: Request, definition: Definition | None) -> dict[str, Any]:
    """Return what the request says, else what the handler declares, else the defaults."""
    found = dict(definition.options if definition else NOTHING_DECLARED)
    for name, option in DECLARED.items():
        given = getattr(request, name)
        if given is not option.default:
            found[name] = option.fallback if given is None else option.kind.read(given, name)
    if found["queue"] is None:
        found["queue"] = queue_name(settings.default_queue)
    if found["retry"] is None:
        found["retry"] = settings.retry
    _refuse_what_contradicts_the_key(request)
    return found


def _shared(stored: Any) -> Any:
    return SharedJSON(stored) if isinstance(stored, dict) else stored


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
    for name in ("key_mode", "key_scope"):
        if (given := getattr(request, name)) != OPTIONS[name].default:
            raise InvalidRequest.at(name, "has no effect without a key", value=given, hint="Give the job a key.")
