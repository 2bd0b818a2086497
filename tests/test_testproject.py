"""The example project, as its users run it: in processes of its own, under its own settings."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.support.ports import reserved_port
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
Manage = Callable[..., "subprocess.CompletedProcess[str]"]


COMMAND = [sys.executable, str(ROOT / "testproject/manage.py")]


def environment(folder: Path, url: str | None = None) -> dict[str, str]:
    """Return the environment of a project that knows nothing of this suite; by default on an empty SQLite database."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "COV"))}
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "DATABASE_URL": url or f"sqlite:///{folder}/db.sqlite3",
        "TMPDIR": str(folder),
    }


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    """Run `testproject/manage.py` to its end."""

    def run(*arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], env=environment(tmp_path, url), capture_output=True, text=True, timeout=120
        )

    return run


def passed(run: "subprocess.CompletedProcess[str]") -> str:
    """Return what a run printed, after asserting that it succeeded."""
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_its_own_tests_pass_on_this_database(manage: Manage) -> None:
    url = os.environ.get("OJS_TEST_DATABASE_URL")
    if url:
        # Beside the database of this suite, not over it.
        parts = urlsplit(url)
        url = parts._replace(path=f"{parts.path}_shop").geturl()
    assert "OK" in passed(manage("test", "shop", "--noinput", url=url))


def test_the_checks_find_nothing(manage: Manage) -> None:
    passed(manage("migrate", "--verbosity", "0"))
    output = passed(manage("check", "--fail-level", "WARNING", "--database", "default"))
    assert "no issues" in output


def test_no_migration_is_missing(manage: Manage) -> None:
    assert "No changes" in passed(manage("makemigrations", "--check", "--dry-run"))


def test_the_demo_runs_each_job_once(manage: Manage, tmp_path: Path) -> None:
    output = passed(manage("demo", "--files", "30"))
    counted = dict(re.findall(r"^  (\w[\w ]+?) {2,}(\S+)", output, re.MULTILINE))
    del counted["wall time"]
    assert counted == {
        "enqueue calls": "90",
        "admitted": "30",
        "suppressed": "60",
        "executed": "30",
        "executed twice": "0",
        "lost": "0",
    }
    assert "make serve" in output
    assert not list(tmp_path.glob("ojs-demo-*")), "the demo leaves nothing behind"


@pytest.mark.parametrize("files", ["0", "-1", "all"])
def test_the_demo_refuses_a_senseless_number_of_files(manage: Manage, files: str) -> None:
    run = manage("demo", "--files", files)
    assert run.returncode == 2
    assert "--files" in run.stderr


needs_ps = pytest.mark.skipif(shutil.which("ps") is None, reason="finds a child process with ps")


@needs_ps
def test_the_demo_says_so_when_its_worker_dies(tmp_path: Path) -> None:
    with started(tmp_path, "demo", "--files", "1000") as demo:
        os.kill(until(lambda: child_of(demo.pid, "runworker"), "the worker runs"), signal.SIGKILL)
        output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert "The demo failed: The worker ended early" in output
    assert not list(tmp_path.glob("ojs-demo-*"))


@needs_ps
def test_serve_runs_the_shop_and_a_worker_until_it_is_interrupted(tmp_path: Path) -> None:
    with reserved_port() as port, started(tmp_path, "serve", "--port", str(port)) as serve:
        assert "Press one twice" in until(lambda: fetched(f"http://127.0.0.1:{port}/"), "the shop is open")
        worker = until(lambda: child_of(serve.pid, "runworker"), "the worker runs")
        serve.send_signal(signal.SIGINT)
        output, _ = serve.communicate(timeout=PATIENCE)
    assert serve.returncode == 0, output
    assert "log in as demo / demo, or as viewer / viewer" in output
    assert f"http://127.0.0.1:{port}/admin/django_ojs_unique/job/dashboard/" in output
    assert "Traceback" not in output
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_serve_refuses_a_port_in_use(manage: Manage) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        run = manage("serve", "--port", str(port))
    assert run.returncode == 1
    assert f"Port {port} is in use." in run.stderr


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `testproject/manage.py` in the background, not longer than the test."""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def fetched(url: str) -> str:
    try:
        with urlopen(url, timeout=PATIENCE) as response:
            return response.read().decode()
    except OSError:
        return ""


def child_of(parent: int, word: str) -> int | None:
    """Return the child process whose command line has ``word``."""
    for line in subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True).stdout.splitlines():
        pid, ppid, command = line.split(None, 2)
        if int(ppid) == parent and word in command:
            return int(pid)
    return None
