"""A form of numbers that operators set: one that has changed since the form was shown is not overwritten."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext


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
    """``shown``: the numbers, and for each the hidden field with the value that the form showed."""

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


def _text(limit: int | None) -> str:
    return "" if limit is None else str(limit)
