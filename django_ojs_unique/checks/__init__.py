"""System checks, a module for each subject; `AppConfig.ready` imports them. Their ids are permanent."""

DOCUMENTATION = "docs"
"""Where the pages are that the hints name: the folder of the repository."""


def see(page: str) -> str:
    """Refer to a page of the documentation, with its anchor if it has one: the end of every hint."""
    return f"See {DOCUMENTATION}/{page}"
