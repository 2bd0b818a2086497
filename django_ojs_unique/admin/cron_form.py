"""The form of a periodic job."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import router
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext

from ..handlers.redaction import MASK, holds_mask, names_of_any, redacted_member
from ..models import CronJob
from .sentences import translate


class PayloadFormField(forms.JSONField):
    """A JSON field; a value that Python cannot read or a page cannot show is an error beside the field."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (RecursionError, ValueError):
            raise ValidationError(gettext("This is nested too deeply, or has a number of too many digits.")) from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        return InvalidJSONInput(data)  # shows the text as it was typed

    def prepare_value(self, value: Any) -> Any:
        shown = super().prepare_value(value)
        return shown.encode(errors="backslashreplace").decode() if isinstance(shown, str) else shown


class CronJobForm(forms.ModelForm):  # type: ignore[type-arg]
    """The form of a periodic job; the model validates it."""

    class Meta:
        field_classes = {"args": PayloadFormField, "options": PayloadFormField}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored_type = self.instance.type
        for name in ("args", "options") if not self.instance._state.adding else ():
            self.initial[name] = redacted_member(self.instance, name)

    def add_error(self, field: str | None, error: Any) -> None:
        """Add an error; what the model says in English comes in the language of the visitor."""
        for errors in getattr(error, "error_dict", {}).values():
            for each in errors:
                if each.code is None:
                    each.message = translate(each.message)
        super().add_error(field, error)

    def clean_name(self) -> Any:
        name = self.cleaned_data["name"]
        # Django would ask a replica, which may not have the entry yet, and would then overwrite the entry.
        entries = CronJob.objects.using(router.db_for_write(CronJob))
        if self.instance._state.adding and entries.filter(pk=name).exists():
            raise ValidationError(gettext("There is a cron job of this name already."))
        return name

    def clean_args(self) -> Any:
        return self._unmasked("args")

    def clean_options(self) -> Any:
        return self._unmasked("options")

    def _unmasked(self, name: str) -> Any:
        """Return what is to be stored: for what the form has shown, the stored value; a mask is never stored."""
        value = self.cleaned_data[name]
        if holds_mask(value) and names_of_any():
            shown = self.initial.get(name), self._stored_type
            if json.dumps(shown) != json.dumps((value, self.cleaned_data.get("type"))):
                message = gettext("Write each value in full: {mask} stands for one that is not shown.")
                raise ValidationError(message.format(mask=MASK))
            return getattr(self.instance, name)
        return {} if value is None else value
