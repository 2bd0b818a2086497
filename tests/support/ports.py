"""Ports for servers that cannot be asked which one they got."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


def reserve(port: int = 0) -> socket.socket:
    """Reserve a port until the socket is closed: Linux gives it to nobody who asks for any port.

    The socket does not listen, so a server to which the port is named still gets it, as servers allow the reuse of
    addresses. Raises OSError if the port is in use.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        raise
    return holder


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that a server may use during the block, and nobody else gets."""
    with reserve() as holder:
        yield holder.getsockname()[1]
