"""Explain what an enqueue would do now; nothing is enqueued or recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..enqueue.explain import unhandled
from ..exceptions import OJSError
from ..handlers.redaction import redacted, redacted_args
from ..handlers.registry import registry
from ..models import Job
from ..reporting.limit_waits import would_meet
from ..reporting.text import harmless
from ..unique.keys import KeyMode
from .base import dress, render
from .display import UNSAFE, ago, badge, fingerprint_link, plain_text, pretty
from .explain_form import ExplainForm
from .sentences import translate
from .visibility import Visibility, visibility_of

MOST_DUPLICATES = 20
LONGEST_LINK = 2000
"""The most characters of a query string that every server and proxy accepts."""
LONGEST_SENTENCE = 1000

ACTIONS = {
    "create": _("A new job would be created"),
    "replace": _("The existing job would give way"),
    "reject": _("The enqueue would be refused"),
    "ignore": _("Nothing would be stored: the existing job would be the answer"),
}


def explain(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Show the form and, if it was sent or a link filled it in, the answer."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    sent = request.POST if request.method == "POST" else request.GET if "type" in request.GET else None
    form = ExplainForm(sent)
    dress(model_admin, request, form.fields)
    form.type_plainly()
    answer = _answer(visibility_of(model_admin, request), form) if form.is_bound and form.is_valid() else None
    context = {
        "form": form,
        "types": sorted(registry),
        "answer": answer,
        "link": _link(form) if answer and not answer["is_redacted"] else "",
    }
    return render(model_admin, request, "explain.html", gettext("Explain"), **context)


def _answer(visibility: Visibility, form: ExplainForm) -> dict[str, Any] | None:
    options = form.options()
    try:
        explanation = Job.objects.explain(**options).redacted(options["type"], options.get("args"))
    except OJSError as error:
        form.refuse(str(error.details.get("field", "")), visibility.translate(error.message)[:LONGEST_SENTENCE])
        return None
    met, text, shown = explanation.duplicates, explanation.canonical_text, _shown(options)
    visibility.look(duplicate.job.pk for duplicate in met[:MOST_DUPLICATES])
    return {
        "is_redacted": shown != options,
        "action": ACTIONS[explanation.action],
        "name": explanation.action,
        "reason": harmless(visibility.translate(explanation.reason))[:LONGEST_SENTENCE],
        "warnings": list(_warnings(options, explanation.reason)),
        "waits": [harmless(translate(one)) for one in would_meet(explanation, router.db_for_read(Job) or "default")],
        "policy": "" if explanation.policy is None else pretty(explanation.policy.to_dict()),
        "key": harmless(options.get("key", "")),
        "text": plain_text(text) if text else "",
        "fingerprint": explanation.fingerprint,
        "fingerprint_link": fingerprint_link(explanation.fingerprint, whole=True),
        "duplicates": [
            {
                "link": visibility.link(duplicate.job.pk),
                "state": badge(duplicate.job.state),
                "age": ago(duplicate.job.created_at),
                "until": ago(duplicate.until) if duplicate.until else "",
            }
            for duplicate in met[:MOST_DUPLICATES]
        ],
        "more": max(len(met) - MOST_DUPLICATES, 0),
        "context": [harmless(translate(one)) for one in explanation.matches_only],
        "code": plain_text(_code(**{name: value for name, value in shown.items() if name != "context"})),
    }


def _shown(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an enqueue with what is redacted masked."""
    type = options["type"]
    shown: dict[str, Any] = redacted(type, options)
    return shown | ({"args": redacted_args(type, options["args"])} if "args" in options else {})


def _warnings(options: dict[str, Any], reason: str) -> Iterator[str]:
    if options.get("key_mode") == KeyMode.UNSAFE_DEDUPE:
        yield gettext("{mode} is unsafe. {why}").format(mode=KeyMode.UNSAFE_DEDUPE, why=UNSAFE)
    if registry.find(options["type"]) is None and "No handler is registered" not in reason:
        yield harmless(translate(unhandled(options["type"])))[:LONGEST_SENTENCE]


def _code(type: str, args: Any = None, **options: Any) -> str:
    return f"Job.objects.enqueue({', '.join(_arguments(type, args, options))})"


def _arguments(type: str, args: Any, options: dict[str, Any]) -> Iterator[str]:
    yield repr(type)
    if args:
        yield repr(args)
    for name, value in options.items():
        is_moment = isinstance(value, datetime)
        yield f"{name}=datetime.fromisoformat({value.isoformat()!r})" if is_moment else f"{name}={value!r}"


def _link(form: ExplainForm) -> str:
    """Return a link to this answer; empty if it would be too long."""
    filled_in = {name: form.data[name] for name in form.fields if form.data.get(name)}
    query = urlencode(filled_in)
    return f"{reverse('admin:django_ojs_unique_explain')}?{query}" if len(query) <= LONGEST_LINK else ""
