"""What all pages of the admin share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename
from django.core.exceptions import BadRequest
from django.core.paginator import Paginator
from django.db import models, router
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from ..reporting.parse import read_id
from ..reporting.text import MOST_COUNTED
from .sentences import translate
from .visibility import visibility_of

LONGEST_TERM = 1000
"""The most characters of a search term: SQLite refuses a pattern of 50,000."""

FROM_PAGE = "_from_page"
"""The field that an action's form has if it is on the page of a row: the answer leads back there."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to `MOST_COUNTED` rows, and has no page beyond them; filters can find the other rows.

    If a queryset knows its number of rows, it has it as ``counted``, at most `MOST_COUNTED` + 1.
    """

    object_list: QuerySet[Any]
    counts_in_order = False
    """Whether rows are best counted by the index that also gives their order."""

    @cached_property
    def count(self) -> int:
        return min(self._seen, MOST_COUNTED)

    @property
    def is_cut(self) -> bool:
        """Whether there are more rows than were counted."""
        return self._seen > MOST_COUNTED

    @cached_property
    def _seen(self) -> int:
        if (counted := getattr(self.object_list, "counted", None)) is not None:
            return int(counted)
        rows = self.object_list if self.counts_in_order else self.object_list.order_by()
        return rows[: MOST_COUNTED + 1].count()


class BoundedList(ChangeList):
    """A list without wrong numbers: if not all rows were counted, the search form leaves the total out."""

    def get_filters(self, request: HttpRequest) -> Any:
        self.check_parameters()
        return super().get_filters(request)

    def check_parameters(self) -> None:
        """Raise IncorrectLookupParameters for values that a database cannot search for."""
        values = [value for values in self.filter_params.values() for value in values]
        if len(self.query) > LONGEST_TERM or any("\0" in value for value in values):
            raise IncorrectLookupParameters

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        give_sight(self.model_admin, request, self.result_list)
        if getattr(self.paginator, "is_cut", False):
            self.full_result_count = self.result_count


class BoundedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The admin of a model that may have very many rows."""

    paginator = BoundedPaginator
    show_full_result_count = False
    names_jobs: tuple[str, ...] = ()
    """The fields with the ids of jobs. A row on a page has a `Visibility`, as ``visibility``, that knows these."""
    no_id: Any = ""
    """What is said of a chosen row whose id is no UUID, if the ids of all rows are UUIDs."""

    class Media:
        css = {"all": ["django_ojs_unique/admin.css"]}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        # A page may read from a replica; a change is decided on the database that it is written to.
        return rows.using(router.db_for_write(rows.model)) if request.method == "POST" else rows

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        # Only lookups that the page offers: others would read every row, or fail for some values.
        name, _, question = lookup.partition("__")
        offered = {getattr(each, "parameter_name", each) for each in self.list_filter}
        return name in offered and question in ("", "exact", "gte", "lt", "isnull")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        found = None if "\0" in object_id else super().get_object(request, object_id, from_field)
        if found is not None:
            give_sight(self, request, [found])
        return found

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        response = super().history_view(request, object_id, extra_context)
        for entry in (getattr(response, "context_data", None) or {}).get("action_list", ()):
            entry.change_message = visibility_of(self, request).masked(entry.get_change_message())
        return response

    def response_action(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        ids = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
        if self.no_id and any(read_id(id) is None for id in ids):
            self.message_user(request, self.no_id, messages.WARNING)
            return None
        if any("\0" in id for id in ids):
            raise BadRequest("A row that was chosen has an id that none can have.")
        response = super().response_action(request, *args, **options)
        if FROM_PAGE in request.POST and isinstance(response, HttpResponseRedirect):
            id = quote(request.POST[helpers.ACTION_CHECKBOX_NAME])
            return HttpResponseRedirect(reverse(f"admin:django_ojs_unique_{self.opts.model_name}_change", args=[id]))
        return response


class ChoiceFilter(admin.SimpleListFilter):
    """Filters by a ``field``; it offers all ``names`` that exist, without a query for those that occur."""

    field: str
    names: Iterable[str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(name), translate(name)) for name in self.names]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows if self.value() is None else rows.filter(**{self.field: self.value()})


def column(description: Any, show: Callable[[Any], Any], ordering: str | None = None) -> Any:
    """Return a column of a list, or a read-only field of a page: what ``show`` returns of a row."""

    @admin.display(description=description, ordering=ordering)
    def shown(model_admin: Any, row: Any) -> Any:
        return show(row)

    return shown


def give_sight(model_admin: Any, request: HttpRequest, rows: Iterable[Any]) -> None:
    """Let the columns and fields of some rows know which jobs the visitor may see."""
    visibility = visibility_of(model_admin, request)
    visibility.look(getattr(row, name) for row in rows for name in getattr(model_admin, "names_jobs", ()))
    for row in rows:
        row.visibility = visibility


class ReadOnlyAdmin(BoundedAdmin):
    """The admin of a model whose rows only the job system changes."""

    show_facets = admin.ShowFacets.NEVER

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def may(request: HttpRequest, *permissions: str) -> bool:
    """Whether the user has one of the given permissions of this app, such as ``cancel_job``."""
    return any(request.user.has_perm(f"django_ojs_unique.{permission}") for permission in permissions)


def may_view(request: HttpRequest, model: type[Model]) -> bool:
    """Whether the user may view or change the rows of a model."""
    return may(request, *(get_permission_codename(action, model._meta) for action in ("view", "change")))


def page_url(model_admin: Any, name: str, page: Callable[[Any, HttpRequest], Any]) -> URLPattern:
    """Return the URL pattern ``admin:django_ojs_unique_<name>`` of a page, for staff only.

    The page gets the admin of `Job` and the request, and checks the permissions itself.
    """
    view: Any = model_admin.admin_site.admin_view(partial(page, model_admin))
    return path(f"{name}/", view, name=f"django_ojs_unique_{name}")  # type: ignore[no-any-return]


def render(model_admin: Any, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
    """Render a page that extends ``admin/django_ojs_unique/page.html``."""
    everything = {**model_admin.admin_site.each_context(request), "title": title, "opts": model_admin.opts, **context}
    return TemplateResponse(request, f"admin/django_ojs_unique/{template}", everything)


def dress(model_admin: Any, request: HttpRequest, fields: dict[str, Any]) -> None:
    """Give form fields the widgets that the admin gives to fields of models, be they Django's or a theme's."""
    for name, field in fields.items():
        if field.widget.is_hidden:
            continue
        model_field = _model_field(field)
        model_field.name = name
        widget = model_admin.formfield_for_dbfield(model_field, request).widget
        widget.is_required = field.required
        widget.attrs |= field.widget_attrs(widget)
        field.widget = widget
        if isinstance(field, forms.ChoiceField):
            field.choices = field.choices  # which the new widget gets, too


def _model_field(field: Any) -> models.Field[Any, Any]:
    if isinstance(field, forms.ChoiceField):
        choices: Any = field.choices
        return models.CharField(choices=list(choices))
    if isinstance(field, forms.BooleanField):
        return models.BooleanField()
    if isinstance(field, forms.IntegerField):
        return models.IntegerField()
    return models.TextField() if isinstance(field.widget, forms.Textarea) else models.CharField()
