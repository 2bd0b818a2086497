"""The HTTP API, and the bare view to compare it with."""

from django.urls import include, path

from .api import Bare

urlpatterns = [path("bare", Bare.as_view()), path("", include("django_ojs_unique.api.urls"))]
