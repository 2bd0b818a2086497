"""The OJS HTTP binding with Django REST framework (extra ``api``): include `django_ojs_unique.api.urls`."""

from importlib.util import find_spec

if find_spec("rest_framework") is None:
    raise ImportError("The HTTP API needs Django REST framework (extra `api`): pip install djangorestframework")
