"""Routers that tests install: each is for the job tables only."""

from __future__ import annotations

from typing import Any


class JobsOnOther:
    """Jobs live in ``other``, everything else in ``default``."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_ojs_unique" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "other" if app_label == "django_ojs_unique" else None


class JobsReadFromOther:
    """Jobs are read from ``other``, a replica, unless they are written; everything else is in ``default``."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_ojs_unique" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "default" if model._meta.app_label == "django_ojs_unique" else None


class JobsWrittenToOther:
    """Jobs are written to ``other``, and read from ``default``, a replica; everything else is in ``default``."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "default" if model._meta.app_label == "django_ojs_unique" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_ojs_unique" else None
