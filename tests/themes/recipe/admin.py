"""What docs/admin.md tells users of django-unfold to write."""

from django.apps import apps
from django.contrib import admin
from unfold.admin import ModelAdmin

for model in apps.get_app_config("django_ojs_unique").get_models():
    if admin.site.is_registered(model):
        own = type(admin.site.get_model_admin(model))
        admin.site.unregister(model)
        admin.site.register(model, type(own.__name__, (own, ModelAdmin), {}))
