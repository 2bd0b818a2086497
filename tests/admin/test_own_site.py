"""An admin site of a project's own, which registers what it likes."""

import pytest
from django.contrib import admin
from django.test import override_settings
from django.urls import path

from django_ojs_unique.models import Job

pytestmark = pytest.mark.django_db

site = admin.AdminSite()
site.register(Job, admin.ModelAdmin)
urlpatterns = [path("admin/", site.urls)]


@override_settings(ROOT_URLCONF=__name__)
def test_it_may_have_some_of_the_pages_only(admin_client):
    job = Job.objects.enqueue("email.send").job
    for page in ("", "django_ojs_unique/", "django_ojs_unique/job/", f"django_ojs_unique/job/{job.pk}/change/"):
        answer = admin_client.get(f"/admin/{page}")
        assert answer.status_code == 200
        assert 'href=""' not in answer.content.decode()
