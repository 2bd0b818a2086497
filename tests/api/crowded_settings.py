"""The settings of a server where two fetches may wait, as long as a test does."""

import os

from testproject.conformance import *  # noqa: F403

OJS_UNIQUE["API"] |= {  # noqa: F405
    "MAX_WAIT": float(os.environ.get("OJS_TEST_PATIENCE", "120")),
    "MAX_WAITING": 2,
}
