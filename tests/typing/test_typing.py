"""A user's code is checked as strictly as their type checker can, by what the package says about itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import django_ojs_unique

ROOT = Path(django_ojs_unique.__file__).parent.parent
SHOP = Path(__file__).parent / "shop.py"


def check(tool, *arguments, folder):
    """Let a type checker read the user's code; return its exit code and what it said."""
    pytest.importorskip(tool)
    done = subprocess.run(
        [sys.executable, "-m", tool, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


PLUGIN = """\
[mypy]
plugins = mypy_django_plugin.main
[mypy.plugins.django-stubs]
django_settings_module = tests.settings
"""


@pytest.mark.slow
@pytest.mark.parametrize("config", ["", PLUGIN], ids=["alone", "with the plugin for Django"])
def test_mypy_finds_the_mistakes_and_nothing_else(config, tmp_path):
    pytest.importorskip("mypy_django_plugin")
    (tmp_path / "mypy.ini").write_text(config)
    options = ("--strict", "--config-file", "mypy.ini", "--follow-imports=silent", "--cache-dir", tmp_path)
    code, said = check("mypy", *options, SHOP, folder=tmp_path)
    assert code == 0, said


@pytest.mark.slow
def test_pyright_finds_the_mistakes_and_nothing_else(tmp_path):
    config = {
        "include": [str(SHOP)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    code, said = check("basedpyright", "--pythonpath", sys.executable, folder=tmp_path)
    assert code == 0, said


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "django_ojs_unique/py.typed").is_file()
