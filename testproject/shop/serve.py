"""The example project on your own machine: database, demo login, worker and server (`manage.py serve`)."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command
from rest_framework.authtoken.models import Token

from .history import write_history
from .models import Order, Picture

LOGIN = PASSWORD = TOKEN = "demo"
VIEWER = "viewer"
"""The login, and also the password, of a user who may view everything and change nothing."""
HOST = "127.0.0.1"
CUSTOMERS = ["ada", "grace", "linus"]
ITEMS = [("Teapot", "24.90"), ("Lantern", "39.00"), ("Umbrella", "18.50")]
PICTURES = [("Meadow", "#588157"), ("Dune", "#e9c46a"), ("Moor", "#6d597a")]
LONGEST_STOP_SECONDS = 30


class CannotServe(Exception):
    """The example project cannot be served."""


def prepare(port: int) -> None:
    """Migrate the database and fill it. Raises CannotServe if DEBUG is off or the port is in use."""
    if not settings.DEBUG:
        raise CannotServe("The demo login is for DEBUG only.")
    if not _is_free(port):
        raise CannotServe(f"Port {port} is in use. Choose another one: make serve PORT={port + 1}")
    call_command("migrate", verbosity=0)
    add_samples()
    write_history()


def add_samples() -> None:
    """Create the demo logins, customers, orders and pictures that do not exist yet."""
    users = get_user_model()
    if not users.objects.filter(username=LOGIN).exists():
        users.objects.create_superuser(LOGIN, f"{LOGIN}@example.com", PASSWORD)
    Token.objects.get_or_create(user=users.objects.get(username=LOGIN), defaults={"key": TOKEN})
    if not users.objects.filter(username=VIEWER).exists():
        viewer = users.objects.create_user(VIEWER, f"{VIEWER}@example.com", VIEWER, is_staff=True)
        viewer.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    for name, (item, total) in zip(CUSTOMERS, ITEMS, strict=True):
        customer, _ = users.objects.get_or_create(username=name, defaults={"email": f"{name}@example.com"})
        Order.objects.get_or_create(customer=customer, item=item, defaults={"total": Decimal(total)})
    for title, ground in PICTURES:
        Picture.objects.get_or_create(title=title, defaults={"ground": ground})


@contextmanager
def worker() -> Iterator[None]:
    """Run a worker process in the background; at the end, let it finish short jobs and requeue the others."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "runworker", "--shutdown-timeout", "5"]
    # Some jobs fail on purpose. The dashboard shows them, so the console does not have to.
    environment = {"SHOP_LOG_LEVEL": "CRITICAL", **os.environ}
    # In its own session, so that Ctrl-C does not reach it directly, but once from here.
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(LONGEST_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
