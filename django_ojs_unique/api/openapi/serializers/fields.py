"""The kinds of fields that bodies have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.fields import CharField, ChoiceField, IntegerField, JSONField, ListField, RegexField

from ...wire.moments import LONGEST_MS
from ...wire.worker_requests import MOST_JOBS


class WireField(JSONField):
    """A field that the framework has no class for; ``shape`` is its JSON Schema."""

    shape: Mapping[str, Any]


class ArgsField(WireField):
    """An array or an object."""

    shape = {"oneOf": [{"type": "array", "items": {}}, {"type": "object", "additionalProperties": {}}]}


class ActiveJobsField(WireField):
    """The ids of the jobs that a worker runs, or how many they are."""

    shape = {
        "oneOf": [
            {"type": "array", "items": {"type": "string"}, "maxItems": MOST_JOBS},
            {"type": "integer", "minimum": 0},
        ]
    }


class MomentField(WireField):
    """A moment as a client may write it."""

    shape = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": r"^\+P"}]}


class DelayField(WireField):
    """A duration from now, or a moment."""

    shape = {"anyOf": [{"type": "string", "pattern": r"^\+?P"}, {"type": "string", "format": "date-time"}]}


class DurationField(WireField):
    """A duration."""

    shape = {"type": "string", "format": "duration"}


def matching(pattern: re.Pattern[str], longest: int, **options: Any) -> RegexField:
    """Describe a text that matches a pattern as a whole."""
    return RegexField(f"^(?:{pattern.pattern})$", max_length=longest, **options)


def one_of(choices: Iterable[Any], **options: Any) -> ChoiceField:
    """Describe one of the given names."""
    return ChoiceField([str(choice) for choice in choices], **options)


def several_of(choices: Iterable[Any], **options: Any) -> ListField:
    """Describe an array of the given names."""
    return ListField(child=one_of(choices), **options)


def milliseconds(**options: Any) -> IntegerField:
    """Describe a duration in milliseconds."""
    return IntegerField(min_value=1, max_value=LONGEST_MS, required=False, **options)


def moment_or_delay() -> MomentField:
    """Describe a moment, or a delay from now."""
    return MomentField(required=False, help_text="RFC 3339 with a zone, or `+` and an ISO 8601 duration from now.")


def delay_or_moment() -> DelayField:
    """Describe a delay from now, or a moment."""
    return DelayField(required=False, help_text="An ISO 8601 duration from now, or RFC 3339 with a zone.")


def texts(**options: Any) -> ListField:
    """Describe an array of strings."""
    return ListField(child=CharField(allow_blank=True), **options)


def having(title: str, /, **members: Any) -> type[serializers.Serializer[Any]]:
    """Describe an object that has all of these members."""
    return type(title, (serializers.Serializer,), members)
