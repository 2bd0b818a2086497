"""The API, and a way to begin each case of the conformance suite with an empty server."""

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

if not settings.DEBUG:
    raise ImproperlyConfigured("These routes can empty the database: they are for DEBUG only.")


@csrf_exempt
@require_POST
@transaction.atomic
def reset(request: HttpRequest) -> HttpResponse:
    """Forget all jobs, queues, periodic jobs, events, workers and suppressed attempts."""
    for model in apps.get_app_config("django_ojs_unique").get_models():
        model._default_manager.all().delete()
    return HttpResponse(status=204)


urlpatterns = [path("", include("django_ojs_unique.api.urls")), path("test/reset", reset)]
