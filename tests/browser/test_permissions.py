"""Who may only look sees nothing to press, and who may not even look sees nothing."""

import re

from django_ojs_unique.models import Job, Queue
from tests.browser import gallery
from tests.browser.conftest import staff

ACTS = re.compile("cancel|retry|retry|release|delete|pause|resume|keep", re.IGNORECASE)
PAGES = ["job_changelist", "job_change", "dashboard", "duplicates", "duplicates_of", "explain"]


def of(page, job):
    """Return the arguments of a page's address."""
    return {"job_change": [job.pk], "duplicates_of": [job.fingerprint]}.get(page, [])


def test_a_viewer_sees_every_page_and_nothing_that_changes_a_job_or_a_queue(visit):
    viewer = visit(staff("vera", "view_job", "view_queue", "view_suppressedenqueue", "view_workerprocess"))
    shown = gallery.fill()
    for page in PAGES:
        assert viewer.opens(page, *of(page, shown.dead)).ok, page
        content = viewer.page.locator("#content")
        assert not content.get_by_role("button", name=ACTS).count(), page
        assert not content.locator("select[name='action'], [name='_selected_action']:visible, .deletelink").count(), (
            page
        )


def test_a_viewer_who_knows_the_addresses_changes_nothing(visit):
    viewer, (job, _) = visit(staff("vera", "view_job")), gallery.pair()
    before = list(Job.objects.order_by("pk").values())
    viewer.is_refused("resolve")
    viewer.is_refused("job_delete", job.pk)
    viewer.opens("job_changelist")
    assert viewer.posts("resolve", keep=f"newest:{job.fingerprint}").status == 403
    assert viewer.posts("dashboard", pause="newsletters").status == 403
    for action in ("cancel", "retry", "retry", "release_unique_key", "delete_selected"):
        # Django shows the list again and does nothing.
        viewer.posts("job_changelist", action=action, _selected_action=str(job.pk), resolution="force", confirmed="yes")
    assert list(Job.objects.order_by("pk").values()) == before
    assert not Queue.objects.exists()


def test_who_may_not_view_jobs_is_refused_each_page(visit):
    otto, job = visit(staff("otto")), gallery.dead()
    for page in PAGES:
        otto.is_refused(page, *of(page, job))
