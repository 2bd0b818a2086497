"""Each scenario of `tests.ha`, in a process of its own; it judges itself, and this repeats what it said."""

import os
import signal
import subprocess
import sys

import pytest

from tests.ha.__main__ import MISSING, SCENARIOS

pytestmark = pytest.mark.ha
LONGEST = 300
"""Seconds."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_answered_is_kept_and_nothing_is_twice(scenario):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "OJS_TEST_"))}
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.ha", scenario], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said = running.communicate(timeout=LONGEST)[0].decode()
    finally:
        running.send_signal(signal.SIGTERM)  # so that it ends its servers
        running.wait()
    print(said)
    if running.returncode == MISSING:
        pytest.skip(said.strip())
    assert running.returncode == 0
