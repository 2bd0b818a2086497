"""A host whose clock is off prunes, and tells of workers, by the database's clock; and it says that it is off."""

import re
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.admin.display import ago_text
from django_ojs_unique.checks.database import check_databases
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.unclaimed import nobody
from django_ojs_unique.worker import Worker
from tests.support.clocks import ON_A_SERVER, real_now
from tests.support.jobs import row
from tests.support.past import worker

pytestmark = pytest.mark.django_db(databases=["default"])
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("off", [-HOUR, timedelta(), HOUR], ids=str)
@ON_A_SERVER
def test_pruning_keeps_a_row_whose_window_is_open(host, off):
    once = UniquePolicy(keys=["type"], period="PT2H", states=["available", "completed"])
    kept, pruned = (Job.objects.enqueue(type, unique=once).job for type in ("kept", "pruned"))
    for job, left in ((kept, HOUR / 2), (pruned, -HOUR / 2)):
        ends = timezone.now() + left
        row(job).update(
            state="completed", created_at=ends - 2 * HOUR, window_ends_at=ends, finished_at=timezone.now() - 2 * HOUR
        )
    host.off = off
    call_command("prunejobs", "--older-than", "PT1M", verbosity=0)
    assert list(Job.objects.values_list("type", flat=True)) == ["kept"]


@pytest.mark.parametrize("off", [-HOUR, HOUR], ids=str)
@ON_A_SERVER
def test_a_reader_whose_clock_is_off_sees_a_worker_that_lives(host, off):
    worker(heard=real_now())
    job = Job.objects.enqueue("t").job
    host.off = off
    assert nobody(job, "default") == ""
    assert ago_text(job.created_at).endswith("s ago")


@pytest.mark.parametrize(("off", "said"), [(-1, "seconds behind"), (1, "seconds ahead"), (0, "")])
@ON_A_SERVER
def test_a_check_finds_a_clock_that_is_off(host, off, said):
    host.ahead(hours=off)
    found = [each.msg for each in check_databases(["default"]) if each.id == "django_ojs_unique.W016"]
    assert len(found) == bool(said)
    assert all(said in each for each in found)


@ON_A_SERVER
def test_a_worker_says_how_far_the_clock_of_its_host_is_off(host):
    host.behind(hours=1)
    found = Worker()._facts()["clock_ahead"]
    assert -3660 < found < -3540


@pytest.mark.parametrize(("ahead", "said"), [(-6.4, "clock 6 s behind"), (3_600, "clock 3,600 s ahead"), (0.5, "")])
def test_the_page_of_a_worker_says_so(admin_client, ahead, said):
    worker("w", heard=timezone.now(), clock_ahead=ahead)
    page = admin_client.get(reverse("admin:django_ojs_unique_workerprocess_change", args=["w"])).content.decode()
    assert re.findall(r"clock [\d,]+ s \w+", page) == ([said] if said else [])
