"""The site of the documentation: it is found, copied and read, also by the keyboard and by a screen reader."""

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest

from tests.browser.conftest import SIZE, WAIT_MILLISECONDS, Visitor, Watch
from tests.support.pages import ROOT

pytestmark = pytest.mark.slow

PAGES = ["index", "debounce-and-throttle", "choose-a-strategy", "http", "schema", "api", "glossary"]
FIRST = {
    "cancel all jobs of a type": "recipes",
    "naive datetime": "schedules",
    "debounce": "debounce-and-throttle",
    "fingerprint": "policy",
    "finalize": "glossary",
    "dead letter": "glossary",
    "run a worker": "run-a-worker",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does, and serve it; return where its pages are."""
    pytest.importorskip("sphinx_copybutton", reason="needs the group docs")
    folder = tmp_path_factory.mktemp("site")
    strict = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky"]
    build = [sys.executable, "-m", "sphinx", *strict, "-c", "docs", "-d", folder / "doctrees", ".", folder]
    done = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def reader(browser, site):
    """Somebody who reads the site; at the end, nothing may have gone wrong."""
    watch = Watch()
    context = browser.new_context(viewport=SIZE, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    watch.over(page)
    yield Visitor(page, site, watch)
    context.close()
    assert watch.problems == []


@pytest.mark.parametrize("wanted", FIRST)
def test_the_search_finds_the_right_page_first(reader, wanted):
    reader.page.goto(f"{reader.base}/search.html?q={quote(wanted)}")
    link = reader.page.locator("#search-results li a").first.get_attribute("href")
    assert link.startswith(f"docs/{FIRST[wanted]}.html"), link


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_can_be_read_by_everybody(reader, scheme):
    reader.page.emulate_media(color_scheme=scheme)
    found = []
    for name in PAGES:
        reader.page.goto(f"{reader.base}/docs/{name}.html")
        found += [f"{name}: {violation}" for violation in reader.violations()]
    assert found == []


def test_the_sidebar_has_headings_and_what_scrolls_takes_the_focus(reader):
    reader.page.set_viewport_size({"width": 500, "height": 800})
    reader.page.goto(f"{reader.base}/docs/http.html")
    headings = reader.page.locator(".sidebar-tree .caption[role=heading][aria-level='2']")
    assert headings.count() == reader.page.locator(".sidebar-tree .caption").count() > 0
    code = reader.page.locator("pre[role=region][aria-label=Code]").first
    code.focus()
    code.press("ArrowRight")
    assert code.evaluate("it => getComputedStyle(it).outlineStyle") == "solid"


def test_a_command_is_copied_without_its_prompt_and_its_output(reader):
    reader.page.goto(f"{reader.base}/docs/http.html")
    block = reader.page.locator("div.highlight-console", has_text="pdf.render").first
    block.hover()
    block.locator("button.copybtn").click()
    reader.page.locator("button.copybtn.success").wait_for()
    copied = reader.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("curl ")
    assert '{"job"' not in copied.replace(" ", "").partition("--json")[0]
    assert "$ " not in copied
    assert '"attempt": 0' not in copied


def test_output_has_no_copy_button(reader):
    reader.page.goto(f"{reader.base}/docs/index.html")
    assert reader.page.locator("div.highlight-python button.copybtn").count() == 2
    assert reader.page.locator("div.highlight-text button.copybtn").count() == 0
