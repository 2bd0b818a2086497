"""Rows of the project's tables: stored by their primary key, read again before each run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import Model, QuerySet

from ...exceptions import InvalidArgs, InvalidRequest, as_json
from .containers import Conversion, NoConversion, unusable, wrong_type
from .scalars import SCALARS


class Instance(Conversion):
    """An instance of one model, as its primary key."""

    def __init__(self, model: type[Model]) -> None:
        self.model, self.label = model, model._meta.label
        if len(getattr(model._meta, "pk_fields", [0])) != 1:
            raise NoConversion(f"{self.label} has a primary key of several columns: send these")

    def to_json(self, value: Any, path: str) -> Any:
        if isinstance(value, self.model):
            if value.pk is None or value._state.adding:
                hint = "Save it first." if value._state.adding else "Send what the handler needs of it."
                raise InvalidRequest.at(path, f"is a {self.label} that is not stored", hint=hint)
            value = value.pk
        elif isinstance(value, Model):
            raise InvalidRequest.at(path, f"is a {value._meta.label}; its parameter takes a {self.label}")
        try:
            key = self._key(value)
            return SCALARS[type(key)].to_json(key, path)
        except (ValidationError, ValueError, TypeError, KeyError):
            raise wrong_type(path, value, f"{self.label} or primary key of one") from None

    def from_json(self, stored: Any, path: str) -> Any:
        return self.all_from_json([stored], path)[0]

    def all_from_json(self, stored: Sequence[Any], path: str) -> list[Any]:
        try:
            keys = [self._key(each) for each in stored]
        except (ValidationError, ValueError, TypeError):
            raise unusable(path, stored, self.label) from None
        found = self._rows().in_bulk(keys)
        for key in keys:
            if key in found:
                continue
            problem = f"there is no {self.label} with the primary key {key} any more"
            gone = InvalidArgs.at(path, problem, hint="It was deleted after the enqueue.")
            gone.got, gone.details["value"] = str(key), as_json(key)
            raise gone
        return [found[key] for key in keys]

    def _key(self, value: Any) -> Any:
        """Return a primary key as the model has it."""
        if value is None or isinstance(value, (bool, float)):
            raise ValueError("no key")
        return self.model._meta.pk.to_python(value)

    def _rows(self) -> QuerySet[Model]:
        """The rows, also those that a manager hides, on the database that is written: a replica may be behind."""
        return self.model._base_manager.using(router.db_for_write(self.model))


class AnyInstance(Conversion):
    """An instance of any of some models, as ``app.model/key``."""

    def __init__(self, models: Iterable[type[Model]]) -> None:
        self.models = tuple(models)
        self.names = " or ".join(model.__name__ for model in self.models)

    def to_json(self, value: Any, path: str) -> Any:
        is_row = isinstance(value, self.models)  # also a lazy object
        model, key = (value.__class__, value) if is_row else self._read(value, path, wrong_type)
        return f"{model._meta.label_lower}/{Instance(model).to_json(key, path)}"

    def from_json(self, stored: Any, path: str) -> Any:
        model, key = self._read(stored, path, unusable)
        return Instance(model).from_json(key, path)

    def _read(self, text: Any, path: str, error: Callable[[str, Any, str], Exception]) -> tuple[type[Model], str]:
        label, _, key = text.partition("/") if isinstance(text, str) else ("", "", "")
        try:
            model = apps.get_model(label)
        except (LookupError, ValueError):
            model = None
        if model is None or not issubclass(model, self.models):
            raise error(path, text, self.names)
        return model, key
