"""What a suppressed enqueue keeps of large args and meta: their size."""

import json
from contextlib import suppress
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import reverse

from django_ojs_unique.db.fields import BriefPayloadField
from django_ojs_unique.exceptions import DuplicateJob
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.reporting.suppressed import differences

pytestmark = pytest.mark.django_db(transaction=True)

LARGE = {"text": "ü" * 300_000}
SIZE = len('{"text":""}') + 600_000


def of_bytes(size, character="x"):
    return {"text": character * ((size - len('{"text":""}')) // len(character.encode()))}


def kept(args, meta=None, *, strategy="ignore", many=False):
    unique = {"on_conflict": strategy}
    if not Job.objects.exists():
        Job.objects.enqueue("t", unique=unique)
    if many:
        Job.objects.enqueue_many([{"type": "t", "args": args, "meta": meta, "unique": unique}] * 3)
    else:
        with suppress(DuplicateJob):
            Job.objects.enqueue("t", args, meta=meta, unique=unique)
    return list(SuppressedEnqueue.objects.values_list("args", "meta"))


@pytest.mark.parametrize("many", [False, True], ids=["single", "many"])
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
def test_only_the_size_of_large_args_is_kept(strategy, many):
    assert kept(LARGE, strategy=strategy, many=many) == [(SIZE, {})] * (3 if many else 1)


@pytest.mark.parametrize("many", [False, True], ids=["single", "many"])
def test_only_the_size_of_a_large_meta_is_kept(many):
    assert kept({"n": 1}, of_bytes(5000), many=many) == [({"n": 1}, 5000)] * (3 if many else 1)


@pytest.mark.parametrize("character", ["x", "ü"])
def test_the_limit_counts_bytes_of_utf_8(character):
    largest = of_bytes(BriefPayloadField.LARGEST - 1, character)
    assert kept(largest) == [(largest, {})]
    SuppressedEnqueue.objects.all().delete()
    ((size, _),) = kept({**largest, "n": 1})
    assert size == BriefPayloadField.LARGEST + len(',"n":1') - 1


def test_the_job_itself_keeps_all():
    unique = {"on_conflict": "replace"}
    Job.objects.enqueue("t", unique=unique)
    assert Job.objects.get(pk=Job.objects.enqueue("t", LARGE, unique=unique).job.pk).args == LARGE


def test_it_differs_as_a_whole():
    kept(LARGE)
    (found,) = differences(Job.objects.get(), "t", *SuppressedEnqueue.objects.values_list("args", "meta").get())
    assert (found.path, found.old, found.new) == ("args", "{}", '"600,011 bytes, which are not kept"')


def test_the_admin_and_the_command_say_how_large_they_were(client):
    kept(LARGE)
    client.force_login(User.objects.create_superuser("root"))
    said = "600,011 bytes, which are not kept"
    attempt = SuppressedEnqueue.objects.get()
    for page in (
        reverse("admin:django_ojs_unique_suppressedenqueue_change", args=[attempt.pk]),
        reverse("admin:django_ojs_unique_duplicates"),
        reverse("admin:django_ojs_unique_duplicates_of", args=[attempt.fingerprint]),
    ):
        assert said in client.get(page).content.decode()
    out = StringIO()
    call_command("jobs", "duplicates", "--json", stdout=out)
    assert json.loads(out.getvalue())["suppressed"][0]["args"] == said
