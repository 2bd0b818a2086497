"""The pages in light and dark: readable by everybody; with ``OJS_SCREENSHOTS`` set to a folder, also pictured there."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from tests.browser import gallery

PAGES = {
    "dashboard": lambda operator, shown: operator.opens("dashboard", span="day"),
    "jobs": lambda operator, shown: operator.opens("job_changelist"),
    "job": lambda operator, shown: operator.opens("job_change", shown.holder.pk),
    "duplicates": lambda operator, shown: operator.opens("duplicates", span="hour"),
    "fingerprint": lambda operator, shown: operator.opens("duplicates_of", shown.pair[0].fingerprint),
    "workflow": lambda operator, shown: operator.opens("workflow_change", gallery.flow().pk),
    "workflows": lambda operator, shown: operator.opens("workflow_changelist"),
    "explain": lambda operator, shown: operator.opens("explain", type="invoice.render", args='{"order": 17}'),
}

ROOM = {
    "dashboard": (1200, 1500),
    "duplicates": (1200, 880),
    "job": (1200, 1400),
    "jobs": (1360, 800),
    "workflow": (1200, 1060),
}
"""How wide and high the pictures of pages are that need more room than others, in pixels."""

ONLY = {"dark": ["color-contrast", "link-in-text-block"]}
"""The rules for which the scheme makes a difference."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_accessible(visit, scheme):
    operator, shown = visit(User.objects.create_superuser("grace"), color_scheme=scheme), gallery.fill()
    found = []
    for name, opens in PAGES.items():
        assert opens(operator, shown).ok, name
        picture(operator.page, f"{name}-{scheme}")
        found += [f"{name}: {violation}" for violation in operator.violations(ONLY.get(scheme))]
    assert found == []


def picture(page, name):
    """Take a picture, where pictures are wanted, with room for the content."""
    if folder := os.environ.get("OJS_SCREENSHOTS"):
        page.evaluate("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        width, height = ROOM.get(name.partition("-")[0], (1200, 800))
        page.set_viewport_size({"width": width, "height": height})
        page.reload()
        page.screenshot(path=(path := Path(folder, f"{name}.png")))
        shrink(path)


def shrink(path):
    """Give a picture a palette, which halves it, where Pillow is installed."""
    with suppress(ImportError):
        from PIL import Image

        Image.open(path).quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
