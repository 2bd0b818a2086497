"""The site that the browser visits: the admin, and a shop with one button, under a strict content security policy."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import path

from django_ojs_unique import DuplicateJob
from django_ojs_unique.models import Job

POLICY = "default-src 'self'; img-src 'self' data:"

MIDDLEWARE = [
    "tests.browser.site.content_security_policy",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

PAGE = """<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,">
<form method="post">{% csrf_token %}<button>Render the invoice</button></form><p role="status">{{ said }}</p></html>"""


def content_security_policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        # A picture brings a stricter one of its own.
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return respond


def shop(request: HttpRequest) -> HttpResponse:
    """Enqueue an invoice at the press of a button, and say what became of it."""
    said = ""
    if request.method == "POST":
        try:
            result = Job.objects.enqueue("invoice.render", {"order": 17})
            said = f"Created {result.job.pk}"
        except DuplicateJob as duplicate:
            said = f"Refused: {duplicate.existing_job_id} is {duplicate.existing_job_state}"
    return HttpResponse(engines["django"].from_string(PAGE).render({"said": said}, request))


def careless(request: HttpRequest) -> HttpResponse:
    """Show what the policy forbids."""
    return HttpResponse('<!doctype html><link rel="icon" href="data:,"><p onclick="1" style="color: red">red</p>')


urlpatterns = [
    path("admin/", admin.site.urls),
    path("shop/", shop),
    path("careless/", careless),
    path("favicon.ico", lambda request: HttpResponse(status=204)),
]
