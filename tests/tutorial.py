"""Follow the README and the tutorial literally: ``python -m tests.tutorial [--page PAGE] [--python PYTHON] ...``.

Each beside a folder that stands for the clone, with a wheel of this checkout in its place. Commands go to one bash. A
block of Python that begins with a path is that file, or its end; the others are typed into the shell that was opened
before them, through a terminal. The text that follows a block must be printed; ``...`` stands for anything, and an id
for any id. `runserver` and `runworker` stay in a second terminal until the next of them. The links in the prose are
opened by the user whom the page has made. Another port is taken for 8000, which may be in use.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from tests.support.ports import HOST, reserve

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/tutorial.md")
STEP = re.compile(r"^```([^\n]*)\n(.*?)^```$|<(http://127[^>]+)>", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"(?<=pip install )\.(?=\s)")
FILE = re.compile(r"# (\w+/\w+\.py)(, at the end)?\n")
STAYS = re.compile(r"python manage\.py (runserver|runworker)((?! --drain)[^\n]*)\n")
SHELL = "python manage.py shell\n"
ANY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\.\.\.")
DONE = "that is done"
"""What a reader who is a script has printed after each block."""
SECONDS, LONGEST = 120, 600
"""How long a process that stays may take to print what it should, and a block of commands until it is done."""


class Failed(Exception):
    """What happened is not what the page says."""


class Terminal:
    """A process that is typed to."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.keyboard, terminal = pty.openpty()
        settings = termios.tcgetattr(terminal)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        self.output = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=terminal,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )
        os.close(terminal)
        self.begin = 0

    @property
    def printed(self) -> str:
        """What was printed since the last block was entered, without Python's prompts."""
        text = Path(self.output.name).read_text()[self.begin :]
        return re.sub(r"^(>>> |\.\.\. )+", "", text, flags=re.MULTILINE)

    def enter(self, source: str, then: str) -> None:
        """Type a block, and what prints that it is done."""
        self.begin = len(Path(self.output.name).read_text())
        os.write(self.keyboard, f"{source}{then}".encode())
        self.wait_for(DONE, LONGEST)

    def wait_for(self, text: str, seconds: float = SECONDS) -> None:
        """Wait until this has been printed. Raises Failed when it cannot be any more."""
        pattern = re.compile(".*".join(map(re.escape, ANY.split(text))), re.DOTALL)
        until = time.monotonic() + seconds
        while not pattern.search(printed := self.printed):
            ended = self.process.poll() is not None
            if ended or DONE in printed or time.monotonic() > until:
                raise Failed(f"this was to be printed:\n{text}\nand this was:\n{self.printed}")
            time.sleep(0.05)

    def leave(self, how: signal.Signals | None = None) -> None:
        """Press Ctrl-C or, without a signal, Ctrl-D, and wait for the end. Raises Failed for a bad one."""
        if how:
            os.killpg(self.process.pid, how)
        else:
            os.write(self.keyboard, b"\x04")
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed(f"it did not end; printed was:\n{self.printed}") from None
        if code:
            raise Failed(f"it ended with {code}; printed was:\n{self.printed}")


class Reader:
    """Somebody who does what the page says, in a folder of their own."""

    def __init__(self, folder: Path, python: str, wheel: Path, django: str) -> None:
        clone, self.folder = folder / "a clone", folder / "mysite"
        clone.mkdir()
        self.wheel = wheel
        self.steps = 0
        constraints = folder / "constraints.txt"
        constraints.write_text(f"django{django}\n" if django else "")
        self.reserved = reserve()
        self.site = f"{HOST}:{self.reserved.getsockname()[1]}"
        tools = folder / "tools"
        tools.mkdir()
        (tools / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
        (tools / "python").chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name == "HOME" or name.startswith("PIP_")}
        self.environment = {
            **kept,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(constraints),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "no_proxy": "127.0.0.1",
        }
        self.first = Terminal(["bash", "-e"], clone, self.environment)
        self.second: Terminal | None = None
        self.shell: Terminal | None = None
        self.last = self.first
        self.browser = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))

    def follow(self, page: str) -> None:
        """Take each step of the page. Raises Failed."""
        for step in STEP.finditer(page):
            language, source, link = step.groups()
            try:
                if link:
                    self.open(link)
                elif language == "console":
                    self.command(source)
                elif language == "text":
                    self.expect(source)
                elif language != "python":
                    raise Failed(f"what is to be done with {language or 'this'}?")
                elif file := FILE.match(source):
                    with (self.folder / file[1]).open("a" if file[2] else "w") as text:
                        text.write(source)
                elif self.shell:
                    self.shell.enter(source, f"print({DONE!r})\n")
                else:
                    raise Failed("which shell is this typed into?")
            except Failed as error:
                raise Failed(f"line {page.count(chr(10), 0, step.start()) + 1}: {error}") from None
            self.steps += 1

    def command(self, source: str) -> None:
        """Do what a block of the console says."""
        if self.shell:
            self.shell.leave()
            self.shell = None
        source = INSTALL.sub(str(self.wheel), source).replace("127.0.0.1:8000", self.site)
        if source.endswith(f"\n{SHELL}"):
            self.command(source.removesuffix(SHELL))
            source = SHELL
        if source == SHELL:
            self.last = self.shell = self.open_terminal(source)
        elif STAYS.fullmatch(source):
            if self.second:
                self.second.leave(signal.SIGINT)
            self.last = self.second = self.open_terminal(source.replace("runserver", f"runserver {self.site}"))
            self.second.wait_for("Quit the server with" if "runserver" in source else "Ctrl-C stops it.")
        else:
            self.last = self.first
            self.first.enter(f"{{\n{source}}} </dev/null\n", f"echo {DONE}\n")

    def expect(self, text: str) -> None:
        """See this printed by the last command, or in the second terminal."""
        text = text.rstrip()  # another thread may print between a line and its end
        try:
            self.last.wait_for(text)
        except Failed as error:
            if not self.second:
                raise
            try:
                self.second.wait_for(text)
            except Failed:
                raise error from None

    def open_terminal(self, command: str) -> Terminal:
        """Open another terminal in the same folder and environment, and start a command there."""
        return Terminal(["bash", "-c", f". .venv/bin/activate && exec {command}"], self.folder, self.environment)

    def go(self) -> None:
        """Close the terminals."""
        for terminal in (self.first, self.second, self.shell):
            if terminal and terminal.process.poll() is None:
                terminal.leave(signal.SIGINT if terminal is self.second else None)
        self.reserved.close()

    def open(self, link: str) -> None:
        """Look at a page of the admin, logged in."""
        url = link.replace("127.0.0.1:8000", self.site)
        try:
            with self.browser.open(url) as answer:
                page, led_to = answer.read().decode(), answer.url
            if "/login/" in led_to and (token := re.search('name="csrfmiddlewaretoken" value="(.+?)"', page)):
                form = {"username": "ada", "password": "secret", "csrfmiddlewaretoken": token[1]}
                with self.browser.open(led_to, urlencode(form).encode()) as answer:
                    led_to = answer.url
        except URLError as error:
            raise Failed(f"{link}: {error}") from None
        if led_to != url:
            raise Failed(f"{link} leads to {led_to}")


def main() -> None:
    # A shell lets what it starts in the background ignore Ctrl-C, and so would our children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description="Follow the README and the tutorial literally, each in its place.")
    parser.add_argument("--page", action="append", choices=PAGES, help="Which of them (default: each).")
    parser.add_argument("--python", default=sys.executable, help="The interpreter (default: this one).")
    parser.add_argument(
        "--django", default="", metavar="VERSION", help="As pip has it, such as ==5.2.*; the newest by default."
    )
    options = parser.parse_args()
    # The path itself, as a shim could choose another one in the reader's folder.
    find = [options.python, "-c", "import sys; print(sys.executable)"]
    python = subprocess.check_output(find, text=True).strip()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)], check=True
        )
        (wheel,) = Path(folder).glob("*.whl")
        for page in options.page or PAGES:
            with tempfile.TemporaryDirectory() as place:
                print(follow(page, Reader(Path(place), python, wheel, options.django)), flush=True)


def follow(page: str, reader: Reader) -> str:
    """Do what a page says; return what was done, with which versions. Exits when the page does not hold."""
    try:
        reader.follow((ROOT / page).read_text())
    except Failed as error:
        sys.exit(f"{page}, {error}")
    finally:
        reader.go()
    python = reader.folder / ".venv/bin/python"
    python_version, django_version = (
        subprocess.check_output([python, *option], text=True).strip()
        for option in (["--version"], ["-m", "django", "--version"])
    )
    return f"{page} holds, each of its {reader.steps} steps: {python_version}, Django {django_version}."


if __name__ == "__main__":
    main()
