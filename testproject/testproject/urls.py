from django.conf import settings
from django.conf.urls.static import static
from django.contrib import admin
from django.http import HttpResponse
from django.urls import include, path

urlpatterns = [
    path("", include("shop.urls")),
    path("", include("django_ojs_unique.api.urls")),
    path("admin/", admin.site.urls),
    # Browsers request it, and the console would show a 404 each time.
    path("favicon.ico", lambda request: HttpResponse(status=204)),
    *static(settings.MEDIA_URL, document_root=settings.MEDIA_ROOT),
]
