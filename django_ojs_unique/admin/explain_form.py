"""The form of the page that explains an enqueue."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..handlers.carried import unique_names
from ..reporting.parse import read_json
from ..reporting.text import harmless
from ..unique.keys import KeyMode, KeyScope
from .sentences import translate

NOT_GIVEN: Any = ...
"""The value of an empty JSON field; None is the value of ``null``."""
_JSON = ("args", "meta", "context", "unique")


class StrictJSONField(forms.Field):
    """A field for strict JSON: no object has a member twice, and NaN and Infinity are refused."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        if not value or not value.strip():
            return NOT_GIVEN
        try:
            return read_json(value)
        except ValueError as error:
            raise ValidationError(translate(str(error))) from None


class ExplainForm(forms.Form):
    """The arguments of ``Job.objects.explain()``."""

    type = forms.CharField(label=_("Type"), help_text=_("As in email.send."))
    args = StrictJSONField(
        label=_("Args"),
        required=False,
        help_text=_("JSON: an object of keyword arguments, or an array of positional ones. Empty means none."),
    )
    queue = forms.CharField(label=_("Queue"), required=False, help_text=_("Empty means the handler’s."))
    meta = StrictJSONField(label=_("Meta"), required=False, help_text=_("JSON: an object that travels with the job."))
    context = StrictJSONField(
        label=_("Context"),
        required=False,
        help_text=_("JSON: what the job would carry, by the names of the classes. Empty: what is active here."),
    )
    unique = StrictJSONField(
        required=False,
        label=_("Unique policy"),
        help_text=_(
            'JSON, as in {"keys": ["type", "args"], "on_conflict": "ignore"}. Empty means the handler’s, '
            "null means none."
        ),
    )
    without_policy = forms.BooleanField(required=False, label=_("No unique policy, whatever the handler declares"))
    key = forms.CharField(
        label=_("Key"),
        required=False,
        strip=False,
        help_text=_("The caller’s name for the job, in the place of a unique policy."),
    )
    key_mode = forms.ChoiceField(
        label=_("Key mode"), required=False, choices=[(str(each), str(each)) for each in KeyMode]
    )
    key_scope = forms.ChoiceField(
        label=_("Key scope"), required=False, choices=[(str(each), str(each)) for each in KeyScope]
    )
    scheduled_at = forms.DateTimeField(label=_("Scheduled at"), required=False, widget=forms.TextInput)
    delay = forms.CharField(label=_("Delay"), required=False, help_text=_("As in PT10M, in the place of a time."))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not unique_names():
            del self.fields["context"]
        zone = timezone.get_current_timezone_name()
        message = gettext("As in 2026-01-31 14:00. Without an offset: in {zone}.")
        self.fields["scheduled_at"].help_text = message.format(zone=zone)

    def type_plainly(self) -> None:
        """Let browsers leave what is typed as it is, and offer the types that have handlers."""
        for field in self.fields.values():
            if isinstance(field.widget, forms.Textarea):
                field.widget.attrs |= {"rows": 4, "spellcheck": "false"}
            elif isinstance(field.widget, forms.TextInput):
                field.widget.attrs |= {"autocomplete": "off", "spellcheck": "false"}
        self.fields["type"].widget.attrs["list"] = "ojs-types"

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if cleaned.get("without_policy") and cleaned.get("unique", NOT_GIVEN) not in (NOT_GIVEN, None):
            self.add_error("unique", gettext("Leave the policy empty, or do not ask for none."))
        return cleaned

    def options(self) -> dict[str, Any]:
        """Return the arguments of an enqueue that were filled in."""
        given = self.cleaned_data
        options = {name: given[name] for name in _JSON if given.get(name, NOT_GIVEN) is not NOT_GIVEN}
        if given["without_policy"]:
            options["unique"] = None
        options |= {name: given[name] for name in ("queue", "key", "scheduled_at", "delay") if given[name]}
        # The choices have a meaning only with a key, and a form always sends them.
        defaults = {"key_mode": KeyMode.REPLACE, "key_scope": KeyScope.TYPE}
        chosen = {name: given[name] for name, default in defaults.items() if given[name] not in ("", default)}
        return {"type": given["type"], **options, **chosen}

    def refuse(self, field: str, message: str) -> None:
        """Show an error beside the form field that ``field``, a path such as ``args.user_id``, begins with."""
        name = field.partition(".")[0].partition("[")[0]
        if name == "unique" and self.cleaned_data.get("unique") is NOT_GIVEN:
            name, message = "args", gettext("They do not fit the handler’s policy: {reason}").format(reason=message)
        self.add_error(name if name in self.fields else None, harmless(message))
