"""The routes of the API, as they are: a new one is in each test that walks them."""

import re
from typing import Any

from django_ojs_unique.api.urls import urlpatterns
from django_ojs_unique.api.views.status import Nowhere

SOME_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
VIEWS: dict[str, Any] = {
    "/" + re.sub(r"<[^>]*>", SOME_ID, str(pattern.pattern)): pattern.callback.view_class
    for pattern in urlpatterns
    if pattern.callback.view_class is not Nowhere
}
"""The view of each path; what varies in a path is an id."""
OPERATIONS = [
    (method, path)
    for path, view in VIEWS.items()
    for method in ("GET", "POST", "PUT", "DELETE")
    if hasattr(view, method.lower())
]
DESCRIBED = {
    f"{method} {path.replace(SOME_ID, '{}')}": getattr(VIEWS[path], method.lower()).operation
    for method, path in OPERATIONS
}
"""What each view says of each of its methods, by the method and its path."""
