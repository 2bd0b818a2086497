"""A project with the admin, on the database that the parent process names."""

from tests.admin_settings import ADMIN_APPS, MIDDLEWARE, STATIC_URL, TEMPLATES  # noqa: F401 - they are settings

from .settings import *  # noqa: F403
from .settings import INSTALLED_APPS as MEASURED

ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "benchmarks.urls"
INSTALLED_APPS = [*ADMIN_APPS, *MEASURED]
