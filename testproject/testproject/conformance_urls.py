"""The API, a view that empties the server before each conformance case, and heartbeats that a job can direct."""

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs_unique.api.views.workers import Heartbeat
from django_ojs_unique.models import Job, WorkerProcess

if not settings.DEBUG:
    raise ImproperlyConfigured("These routes can empty the database: they are for DEBUG only.")


@csrf_exempt
@require_POST
@transaction.atomic
def reset(request: HttpRequest) -> HttpResponse:
    """Delete all jobs, queues, periodic jobs, events, workers and suppressed enqueues."""
    for model in apps.get_app_config("django_ojs_unique").get_models():
        model._default_manager.all().delete()
    return HttpResponse(status=204)


class DirectedHeartbeat(Heartbeat):
    """A heartbeat whose answer is what ``meta.test_directive`` of a held job says, if one does."""

    def post(self, request: Request) -> Response:
        response = super().post(request)
        held = Job.objects.using(self.using).filter(pk__in=response.data["jobs_extended"])
        said = {meta.get("test_directive") for meta in held.values_list("meta", flat=True)}
        if directives := said.intersection(WorkerProcess.Directive.values):
            response.data["state"] = directives.pop()
        return response


urlpatterns = [
    path("ojs/v1/workers/heartbeat", DirectedHeartbeat.as_view()),
    path("", include("django_ojs_unique.api.urls")),
    path("test/reset", reset),
]
