"""No page is wider than the screen, and no table is cut; on a telephone each table scrolls within itself."""

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from django_ojs_unique.models import CronJob, Job, Queue, SuppressedEnqueue, WorkerProcess, Workflow
from tests.browser import gallery

TELEPHONE, LAPTOP = 400, 1280

MEASURE = """() => {
  const name = element => `${element.tagName} ${element.id}.${element.className}`.trim();
  const scrolls = element => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const hides = element => ["hidden", "clip"].includes(getComputedStyle(element).overflowX);
  const ancestors = ({ parentElement: parent }) => parent ? [parent, ...ancestors(parent)] : [];
  const tables = [...document.querySelectorAll("#content table")].filter(table => table.offsetWidth);
  const overflows = element => element.scrollWidth > element.clientWidth;
  const wide = tables.flatMap(ancestors).filter(each => scrolls(each) && overflows(each));
  const edge = table => {
    const scroller = ancestors(table).find(scrolls);
    return scroller ? scroller.getBoundingClientRect() : table.getBoundingClientRect();
  };
  const beyond = tables.filter(table => edge(table).right > innerWidth + 1 || edge(table).left < -1);
  const cut = tables.filter(table => {
    const [hider] = ancestors(table).filter(each => scrolls(each) || hides(each));
    return hider && hides(hider) && overflows(hider);
  });
  return {
    page: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    wide: [...new Set(wide)].map(name), beyond: beyond.map(name), cut: cut.map(name), tables: tables.length,
  };
}"""
"""JavaScript that returns by how many pixels the page is too wide, which scrollers of tables have something to scroll,
which tables reach beyond the screen, and which are cut by what does not scroll."""


def fill():
    """Fill each list with rows as wide as they are in real life."""
    shown = gallery.fill()
    CronJob.objects.define("reports.nightly", "0 3 * * MON-FRI", "catalogue.export", timezone="Europe/Berlin")
    CronJob.objects.update(last_job_id=shown.holder.pk, last_run_at=shown.holder.created_at, last_outcome="created")
    gallery.flow()
    return shown


def pages(shown):
    """Return the address of each page."""
    changes = [
        ("job", shown.holder.pk),
        ("job", shown.dead.pk),
        ("suppressedenqueue", SuppressedEnqueue.objects.latest("pk").pk),
        ("queue", Queue.objects.first().pk),
        ("workerprocess", WorkerProcess.objects.get(hostname="web-1").pk.replace(":", "_3A")),
        ("cronjob", "reports.nightly"),
        ("workflow", Workflow.objects.roots().get().pk),
        ("job", Workflow.objects.roots().get().members[0].job_id),
    ]
    lists = [
        f"{name}_changelist" for name in ("job", "suppressedenqueue", "queue", "workerprocess", "cronjob", "workflow")
    ]
    named = [(name, ()) for name in ("dashboard", "duplicates", "explain", "cronjob_add", *lists)]
    named += [(f"{name}_change", (id,)) for name, id in changes]
    named += [("job_history", (shown.dead.pk,)), ("job_delete", (shown.dead.pk,))]
    named += [("duplicates_of", (shown.pair[0].fingerprint,))]
    found = [reverse(f"admin:django_ojs_unique_{name}", args=args) for name, args in named]
    found.append(found[2] + "?type=invoice.render&args={%22order%22:17}")
    return [*found, reverse("admin:app_list", args=["django_ojs_unique"])]


def asked(operator, shown):
    """Open each page that a form leads to, and yield its name."""
    for action in ("retry", "enqueue_again", "release_unique_key", "delete_selected"):
        operator.opens("job_change", shown.dead.pk if action != "delete_selected" else shown.pair[0].pk)
        if (button := operator.page.locator(f"button[value={action}]")).count():
            button.click()
            yield action
    operator.opens("workflow_change", Workflow.objects.roots().get().pk)
    operator.page.locator("button[value=cancel]").click()
    yield "cancel workflows"
    operator.opens("duplicates")
    operator.page.get_by_text("Keep the newest").first.click()
    yield "resolve"
    operator.page.locator("input[type=submit].default").click()
    yield "resolve_done"


def too_wide(operator, name, width):
    """Return what is wrong with the page that is open."""
    operator.page.wait_for_load_state()
    found = operator.page.evaluate(MEASURE)
    tables = found.pop("tables")
    if width < LAPTOP:
        found.pop("wide")  # there it scrolls
    return {name: found} if any(found.values()) else {}, tables


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (TELEPHONE, "light"),
        (LAPTOP, "dark"),
        pytest.param(TELEPHONE, "dark", marks=pytest.mark.release),
        pytest.param(LAPTOP, "light", marks=pytest.mark.release),
    ],
)
def test_no_page_is_wider_than_the_screen_and_no_table_is_cut(visit, width, scheme):
    operator, shown = visit(User.objects.create_superuser("grace"), color_scheme=scheme), fill()
    operator.page.set_viewport_size({"width": width, "height": 900})
    wrong, measured = {}, 0
    for url in pages(shown):
        assert operator.page.goto(operator.base + url).ok, url
        found, tables = too_wide(operator, url, width)
        wrong, measured = wrong | found, measured + tables
    for name in asked(operator, shown):
        found, tables = too_wide(operator, name, width)
        wrong, measured = wrong | found, measured + tables
    assert wrong == {}
    assert measured > 20
    assert Job.objects.filter(state="cancelled").exists()
