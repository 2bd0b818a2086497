"""The HTTP API, and a bare view beside it."""

from django.urls import include, path

from .api import Bare

urlpatterns = [path("bare", Bare.as_view()), path("", include("django_ojs_unique.api.urls"))]
