"""System checks, one module for each subject; `AppConfig.ready` imports them. Their ids never change."""

TAG = "ojs_unique"
"""The tag of the checks that need neither the URLs nor a database: all that `jobs` and `prunejobs` wait for."""

DOCUMENTATION = "docs"
"""The folder of the repository with the pages that the hints name."""


def see(page: str) -> str:
    """Return the end of a hint: a reference to a page of the documentation, with an anchor if ``page`` has one."""
    return f"See {DOCUMENTATION}/{page}"
