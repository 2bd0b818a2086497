"""The form of a row with numbers that operators set, and its admin."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext

from .base import ReadOnlyAdmin, dress


class LimitField(forms.IntegerField):
    """A limit; empty for none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, **options)

    def clean(self, value: Any) -> Any:
        limit = super().clean(value)
        if limit is not None and limit < 1:
            message = gettext("A limit is at least 1. To stop the queue, pause it; leave this empty for no limit.")
            raise ValidationError(message)
        return limit


class NumbersForm(forms.ModelForm):  # type: ignore[type-arg]
    """A number that has changed since the form was shown is not overwritten.

    ``shown``: the numbers, and for each the hidden field with the value that the form showed.
    """

    shown: ClassVar[dict[str, str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field, shown in self.shown.items():
            self.initial[shown] = _text(getattr(self.instance, field))

    def clean(self) -> dict[str, Any] | None:
        for field, shown in self.shown.items():
            now = self.initial[shown]
            if self.cleaned_data.get(shown, "") != now:
                self.data = {**self.data, field: self.data.get(field, ""), shown: now}
                message = gettext(
                    "{field}: somebody else has changed it meanwhile to {value}. Save again to replace it."
                )
                value = now or gettext("none")
                raise ValidationError(message.format(field=self.fields[field].label, value=value))
        return self.cleaned_data


class NumbersAdmin(ReadOnlyAdmin):
    """Only the numbers of a row are changed. ``happened``: what the log says of each, without and with a number."""

    happened: ClassVar[dict[str, tuple[str, str]]]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        dress(self, request, form.base_fields)
        return form

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super(ReadOnlyAdmin, self).has_change_permission(request, obj)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        numbers = {field: form.cleaned_data[field] for field in self.happened if field in form.changed_data}
        changes = [self.happened[field][number is not None].format(number) for field, number in numbers.items()]
        return " ".join(changes) or "Nothing changed."


def _text(limit: int | None) -> str:
    return "" if limit is None else str(limit)
