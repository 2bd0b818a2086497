"""``--metrics-port``: serve the metrics of a worker process to Prometheus."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from ..worker import Worker
from .arguments import whole_number

HIGHEST_PORT = 65_535


def add_metrics(parser: CommandParser) -> None:
    """Declare ``--metrics-port`` and ``--metrics-address``."""
    parser.add_argument(
        "--metrics-port",
        type=partial(whole_number, most=HIGHEST_PORT),
        metavar="PORT",
        help="Serve metrics for Prometheus on this port. With --processes: PORT, PORT+1 and so on.",
    )
    parser.add_argument(
        "--metrics-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="The address to listen on (default 127.0.0.1, this machine only). Use 0.0.0.0 or :: only"
        " behind a firewall.",
    )


def require_ports(address: str, port: int, processes: int) -> None:
    """Raise CommandError if prometheus-client is missing, or a port cannot be listened on."""
    try:
        from ..contrib import prometheus  # noqa: F401 - it says what to install
    except ImproperlyConfigured as error:
        raise CommandError(f"--metrics-port: {error}") from error
    last = port + processes - 1
    if last > HIGHEST_PORT:
        raise CommandError(f"--metrics-port: {processes} processes need the ports {port} to {last}. Choose lower ones.")
    for each in range(port, last + 1):
        try:
            family, *_, place = socket.getaddrinfo(address, each, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(place)
        except OSError as error:
            raise CommandError(f"--metrics-port: cannot listen on {address} port {each}: {error}.") from error


@contextmanager
def metered(worker: Worker, options: Mapping[str, Any]) -> Iterator[None]:
    """While the block runs, count what a worker does and serve the metrics, if the options name a port."""
    if (port := options["metrics_port"]) is None:
        yield
        return
    from ..contrib.prometheus.worker import serving

    with serving(options["metrics_address"], port) as worker.meter:
        yield
