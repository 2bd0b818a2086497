"""Views that enqueue under ATOMIC_REQUESTS."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_ojs_unique import DuplicateJob
from django_ojs_unique.models import Job


def signup(request: HttpRequest) -> HttpResponse:
    """Write a row, enqueue, write another row; answer 409 for a duplicate, and fail afterwards if asked to."""
    Group.objects.create(name=f"before {request.GET['name']}")
    status = 201
    try:
        Job.objects.enqueue("welcome", unique={"on_conflict": request.GET.get("strategy", "reject")})
    except DuplicateJob:
        status = 409
    Group.objects.create(name=f"after {request.GET['name']}")
    if "fail" in request.GET:
        raise RuntimeError("the view failed")
    return HttpResponse(status=status)


urlpatterns = [path("signup", signup)]
