import os
from urllib.parse import urlsplit

_url = urlsplit(os.environ.get("OJS_TEST_DATABASE_URL") or "postgresql://postgres@127.0.0.1:5432/tenants")
SECRET_KEY = "tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests_tenants.urls"
DATABASES = {
    "default": {
        "ENGINE": "django_tenants.postgresql_backend",
        "NAME": _url.path[1:],
        "USER": _url.username or "postgres",
        "PASSWORD": _url.password or "",
        "HOST": _url.hostname,
        "PORT": _url.port or 5432,
    }
}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LAYOUT = os.environ.get("OJS_TENANTS", "shared")
_OURS = ["django_ojs_unique"]
_DJANGO = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "django.contrib.messages"]
SHARED_APPS = [
    "django_tenants",
    "tests_tenants.customers",
    "rest_framework",
    *_DJANGO,
    *(_OURS if LAYOUT == "shared" else []),
]
TENANT_APPS = ["tests_tenants.shop", *_DJANGO[:3], "django.contrib.admin", *(_OURS if LAYOUT == "own" else [])]
INSTALLED_APPS = [*SHARED_APPS, *(app for app in TENANT_APPS if app not in SHARED_APPS)]
TENANT_MODEL = "customers.Client"
TENANT_DOMAIN_MODEL = "customers.Domain"
MIDDLEWARE = [
    "django_tenants.middleware.main.TenantMainMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
USE_TZ = True
OJS_UNIQUE = {
    "CONTEXT": "django_ojs_unique.contrib.tenants.Tenant",
    "API": {"PERMISSIONS": {"producers": ["rest_framework.permissions.AllowAny"]}},
}
