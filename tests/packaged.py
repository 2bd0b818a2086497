"""Test what `make dist` has built: ``python -m tests.packaged [--oldest] [--python PYTHON] [TESTS ...]``.

The wheel is installed into an environment of its own, with all extras but `mariadb`; the tests are those of the source
distribution, without the package beside them. With ``--oldest`` each dependency has the oldest version that
``pyproject.toml`` allows, else the newest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from shutil import rmtree
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
TESTS = (
    "tests/api/test_manifest.py",
    "tests/api/test_openapi.py",
    "tests/enqueue",
    "tests/handlers",
    "tests/ojs",
    "tests/tasks",
    "tests/unique",
)
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?>=([^;]+)(;.*)?")


def oldest(project: dict[str, object]) -> list[str]:
    """Return a constraint for each dependency of the package, its extras included: the oldest version allowed."""
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]  # type: ignore[attr-defined]
    found = filter(None, map(REQUIREMENT.fullmatch, [*project["dependencies"], *extras]))  # type: ignore[misc]
    return [f"{name}=={version}{marker or ''}" for name, version, marker in (match.groups() for match in found)]


RELATIVE = re.compile(r"\]\((?!https?://)[^)]*\)|<img\b|<picture\b")
"""A link or a picture that only the repository has."""


def description(wheel: Path) -> str:
    """Return the README as an index shows it."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode().partition("\n\n")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--oldest", action="store_true", help="the oldest dependencies; else the newest")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    parser.add_argument("tests", nargs="*", default=TESTS, help="which tests (default: %(default)s)")
    options = parser.parse_args()
    with (ROOT / "pyproject.toml").open("rb") as file:
        described = tomllib.load(file)
    try:
        (wheel,), (source,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    except ValueError:
        sys.exit("dist/ does not hold one wheel and one source distribution; build them with: make dist")
    if broken := RELATIVE.findall(description(wheel)):
        sys.exit(f"the description in {wheel.name} links to files that no index has: {broken}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        unpacked = folder / source.name.removesuffix(".tar.gz")
        rmtree(unpacked / "django_ojs_unique")
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(oldest(described["project"]) if options.oldest else []))
        python = folder / "venv/bin/python"
        subprocess.run([options.python, "-m", "venv", folder / "venv"], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "pip>=25.1"], check=True)
        subprocess.run([*pip, wheel, "--group", "test", "--constraint", constraints], cwd=unpacked, check=True)
        where = "import django, django_ojs_unique as app; print(django.__version__, app.__file__)"
        print(subprocess.check_output([python, "-c", where], cwd=unpacked, text=True).strip(), flush=True)
        environment = {**os.environ, "OJS_TEST_DATABASE_URL": ""}
        command = [python, "-m", "pytest", "-q", "-m", "not slow and not torture", *options.tests]
        sys.exit(subprocess.run(command, cwd=unpacked, env=environment).returncode)


if __name__ == "__main__":
    main()
