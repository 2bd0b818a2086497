"""A browser, somebody logged in, and the certainty that nothing went wrong behind the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse
from pytest_django.live_server_helper import LiveServer

from tests.browser import gallery, site
from tests.support.handlers import forget_all
from tests.support.hosts import network

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
OPTIONS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SIZE = {"width": 1200, "height": 800}
WAIT_MILLISECONDS = 120_000

DJANGOS_OWN = {
    "#searchbar": "its label is a picture without a text in Django 5.2",
    ".breadcrumbs": "its links differ from the text by colour alone",
}
"""What axe-core finds in Django's own admin, and is left out."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; where they cannot run, let one of them say so for all."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in here:
        item.add_marker(pytest.mark.browser)
    if here and (missing := _missing()):
        here[0].add_marker(pytest.mark.skip(reason=f"{len(here)} tests need {missing}"))
        config.hook.pytest_deselected(items=here[1:])
        items[:] = [item for item in items if item not in here[1:]]


def _missing() -> str:
    if find_spec("playwright") is None:
        return "Playwright: pip install playwright"
    return "" if CHROMIUM else "a browser: apt-get install chromium"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with network(), pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's event loop belongs to this thread, but no coroutine of it touches the database.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    """Serve `tests.browser.site`."""
    with override_settings(ROOT_URLCONF=site.__name__, MIDDLEWARE=site.MIDDLEWARE):
        server = LiveServer("localhost")
        yield server
        server.stop()


@pytest.fixture(autouse=True)
def shop(handlers: Any) -> None:
    """Let the handlers be those of a shop."""
    forget_all()
    gallery.declare()


@dataclass
class Watch:
    """What went wrong behind a page: in the console, on the network, against the content security policy."""

    problems: list[str] = field(default_factory=list)

    def over(self, page: Any) -> None:
        page.on("console", lambda message: message.type in ("error", "warning") and self.add("console", message.text))
        page.on("pageerror", lambda error: self.add("script", str(error)))
        page.on("requestfailed", self.request_failed)
        page.on("response", lambda response: response.status >= 400 and self.add(str(response.status), response.url))
        page.on("dialog", lambda dialog: (self.add("dialog", dialog.message), dialog.dismiss()))

    def add(self, kind: str, text: str) -> None:
        self.problems.append(f"{kind}: {text}")

    def request_failed(self, request: Any) -> None:
        # Who leaves a page gives up what it was still fetching.
        if request.failure != "net::ERR_ABORTED":
            self.add("request", f"{request.url}: {request.failure}")


@dataclass
class Visitor:
    """Somebody at a browser."""

    page: Any
    base: str
    watch: Watch

    def opens(self, name: str, *args: Any, **query: str) -> Any:
        """Open a page of the admin by the end of its URL's name; return Playwright's response."""
        return self.page.goto(self.url(name, *args) + (f"?{urlencode(query)}" if query else ""))

    def url(self, name: str, *args: Any) -> str:
        return self.base + reverse(f"admin:django_ojs_unique_{name}", args=args)

    def shows(self, text: str) -> bool:
        """Wait for a text to be visible."""
        self.page.get_by_text(text).first.wait_for()
        return True

    def acts(self, action: str, *jobs: Any) -> None:
        """Use an action on jobs in the list."""
        self.opens("job_changelist")
        for job in jobs:
            self.page.locator(f"input[name='_selected_action'][value='{job.pk}']").check()
        self.page.locator("select[name='action']").select_option(action)
        self.page.locator("button[name='index']").click()

    def posts(self, name: str, **form: Any) -> Any:
        """Post a form that the page itself may not offer; return Playwright's response."""
        token = next(cookie["value"] for cookie in self.page.context.cookies() if cookie["name"] == "csrftoken")
        return self.page.request.post(self.url(name), form={**form, "csrfmiddlewaretoken": token})

    def is_refused(self, name: str, *args: Any) -> None:
        """Open a page, and be told that one may not."""
        assert self.opens(name, *args).status == 403
        known = [problem for problem in self.watch.problems if "403" in problem]
        assert known
        self.watch.problems[:] = [problem for problem in self.watch.problems if problem not in known]

    def violations(self, rules: list[str] | None = None) -> list[str]:
        """Return what axe-core finds serious or critical on the page, but for what is Django's own; by all rules."""
        reason = "needs axe-core: pip install axe-playwright-python"
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=reason).Axe()
        options = {"preload": False, "resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
        answer = axe.run(self.page, {"exclude": list(DJANGOS_OWN)}, options)
        return [
            f"{found['id']}: {node['html'][:200]} {node['failureSummary']}"
            for found in answer.response["violations"]
            if found["impact"] in ("serious", "critical")
            for node in found["nodes"]
        ]

    @property
    def focus(self) -> Any:
        """The element that has the focus."""
        return self.page.locator(":focus")


@pytest.fixture
def visit(browser: Any, live_server: LiveServer, transactional_db: None) -> Iterator[Callable[..., Visitor]]:
    """Open a browser window of somebody's; at the end, let nothing have gone wrong in any."""
    watch = Watch()
    contexts = []

    def open_window(user: User | None = None, **options: Any) -> Visitor:
        context = browser.new_context(viewport=SIZE, **options)
        context.set_default_timeout(WAIT_MILLISECONDS)
        contexts.append(context)
        if user is not None:
            client = Client()
            client.force_login(user)
            cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}])
        page = context.new_page()
        watch.over(page)
        return Visitor(page, live_server.url, watch)

    yield open_window
    for context in contexts:
        context.close()
    assert watch.problems == []


@pytest.fixture
def operator(visit: Callable[..., Visitor]) -> Visitor:
    """Somebody who may do everything."""
    return visit(User.objects.create_superuser("grace", password="grace"))


def staff(name: str, *permissions: str) -> User:
    """Make somebody of the staff who has these permissions only."""
    user = User.objects.create_user(name, password=name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user
