"""Hosts on one machine: network namespaces on a bridge, each with a name, an address and a cable that can be pulled.

It takes root, and the command ``ip`` of iproute2.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "ojs"
CARD = "eth0"


class NotPermitted(Exception):
    """This machine, or this user, cannot have network namespaces."""


class Host:
    """A network namespace; what runs in it sees the host's name and reaches others by the bridge only."""

    def __init__(self, bridge: str, subnet: str, number: int) -> None:
        self.name = f"host-{number}"
        self.address = f"{subnet}.{number + 1}"
        self._namespace = f"{MARK}-{os.getpid()}-{number}"
        cable = f"{bridge}-{number}"
        _ip("netns", "add", self._namespace)
        _ip("link", "add", cable, "type", "veth", "peer", "name", CARD, "netns", self._namespace)
        _ip("link", "set", cable, "master", bridge, "up")
        self._ip("addr", "add", f"{self.address}/24", "dev", CARD)
        self._ip("link", "set", "lo", "up")
        self.heal()

    def command(self, *words: str) -> list[str]:
        """Return the command that runs another one on this host, under one process id."""
        named = 'hostname "$0" && exec "$@"'
        return ["ip", "netns", "exec", self._namespace, "unshare", "--uts", "sh", "-c", named, self.name, *words]

    def cut(self) -> None:
        """Pull the cable: nothing leaves or reaches the host, and nobody is told."""
        self._ip("link", "set", CARD, "down")

    def heal(self) -> None:
        """Plug it in again."""
        self._ip("link", "set", CARD, "up")

    def kill(self) -> None:
        """kill -9, every process of the host at once."""
        _kill_all(self._namespace)

    def _ip(self, *words: str) -> str:
        return _ip("-netns", self._namespace, *words)


@contextmanager
def network(*, changes: bool = False) -> Iterator[None]:
    """Let nobody change the network interfaces of this machine during the block, but the block that ``changes`` them.

    A browser gives up its requests when an interface comes or goes, also those to this machine.
    """
    with (Path(tempfile.gettempdir()) / "ojs-network.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if changes else fcntl.LOCK_SH)
        yield


@contextmanager
def hosts(count: int) -> Iterator[tuple[str, list[Host]]]:
    """Yield the address under which all hosts reach this process, and the hosts; nothing of them outlives the block.

    Raises NotPermitted with a reason that can be shown.
    """
    if shutil.which("ip") is None:
        raise NotPermitted("network namespaces need the command ip: apt-get install iproute2")
    with network(changes=True):
        with suppress(_Refused):  # what a killed run has left behind; another run may be removing it, too
            _remove_those_of(lambda owner: not Path(f"/proc/{owner}").exists())
        pid = os.getpid()
        try:
            yield _build(pid, count)
        finally:
            _remove_those_of(lambda owner: owner == pid)


def _build(pid: int, count: int) -> tuple[str, list[Host]]:
    bridge = f"{MARK}{pid}"
    subnet = f"198.{18 + (pid >> 8 & 1)}.{pid & 255}"  # the range that is set aside for benchmarks (RFC 2544)
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        return f"{subnet}.1", [Host(bridge, subnet, number + 1) for number in range(count)]
    except _Refused as error:
        raise NotPermitted(f"network namespaces are not permitted here: {error}") from None


class _Refused(Exception):
    pass


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise _Refused(f"`ip {' '.join(words)}` said {(done.stderr.strip() or done.returncode)!r}")
    return done.stdout


def _remove_those_of(is_chosen: Callable[[int], bool]) -> None:
    """Kill what runs in the namespaces of some owners, and remove those and their bridges."""
    namespaces = [line.split()[0] for line in _ip("netns", "list").splitlines()]
    for name in namespaces:
        if (found := re.fullmatch(rf"{MARK}-(\d+)-\d+", name)) and is_chosen(int(found[1])):
            _kill_all(name)
            _ip("netns", "delete", name)
    # A cable vanishes with its namespace, but in the kernel's own time: the next hosts would find its name taken.
    for kind in ("veth", "bridge"):
        for link in json.loads(_ip("-json", "link", "show", "type", kind) or "[]"):
            found = re.fullmatch(rf"{MARK}(\d+)(-\d+)?", link["ifname"])
            if found and is_chosen(int(found[1])):
                with suppress(_Refused):  # it has vanished by now
                    _ip("link", "delete", link["ifname"])


def _kill_all(namespace: str) -> None:
    for pid in _ip("netns", "pids", namespace).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
