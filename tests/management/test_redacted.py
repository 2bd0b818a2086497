"""`manage.py jobs` prints no redacted member, with and without ``--json``."""

import io
import json

import pytest
from django.core.management import call_command
from django.utils import timezone

from django_ojs_unique import Limit, UniquePolicy, job
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue
from django_ojs_unique.testing import run_jobs
from tests.support.secrets import ARGS, META, SECRET, assert_hidden

pytestmark = pytest.mark.django_db


@pytest.fixture
def paid(handlers):
    """A job that has run, and an enqueue that met it."""

    @job("bank.pay", redact=["iban"], unique=UniquePolicy(keys=["type", "args"], args_keys=["iban"]))
    def pay(iban, to, amount):
        return META

    paid = pay.using(meta=META).enqueue(**ARGS).job
    run_jobs()
    Job._base_manager.update(extra=META)
    SuppressedEnqueue.objects.create(
        outcome="deduplicated",
        on_conflict="ignore",
        fingerprint=paid.fingerprint,
        type="bank.pay",
        queue="default",
        args=ARGS,
        meta=META,
        existing_job=paid,
        existing_state="available",
    )
    CronJob.objects.create(
        name="n", expression="@daily", type="bank.pay", args=ARGS, options={"meta": META}, next_run_at=timezone.now()
    )
    return paid


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "call",
    [
        ["list"],
        ["show", "{id}"],
        ["explain", "bank.pay", "--args", json.dumps(ARGS), "--meta", json.dumps(META)],
        ["duplicates"],
        ["duplicates", "{id}"],
        ["crons"],
    ],
    ids=" ".join,
)
def test_nothing_prints_the_secret(paid, call, form):
    out = io.StringIO()
    arguments = [word.replace("{id}", str(paid.pk)) for word in call]
    call_command("jobs", *arguments, *(["--json"] if form == "json" else []), stdout=out)
    if form == "json" and call == ["duplicates", "{id}"]:
        assert SECRET[:4] not in out.getvalue()  # it leaves the args out
    elif call == ["crons"] and form == "text":
        assert SECRET[:4] not in out.getvalue()
    else:
        assert_hidden(out.getvalue())


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_an_explanation_masks_the_key_of_a_limit(handlers, form):
    limits = [Limit(key=["args.iban"], running=1), Limit(key=["args.to"], per_hour=2)]
    job("bank.pay", redact=["iban"], limit=limits)(lambda iban, to: None)
    out = io.StringIO()
    call_command("jobs", "explain", "bank.pay", "--args", json.dumps({"iban": SECRET, "to": 7}), *form, stdout=out)
    assert_hidden(out.getvalue())
    if form:
        shown = json.loads(out.getvalue())["limits"]
        assert [(one["key"], one["name"]) for one in shown] == [
            ({"args.iban": "[redacted]"}, "args.iban"),
            ({"args.to": 7}, "args.to"),
        ]
    else:
        assert (
            "limit:          args.iban '[redacted]': running 1\nlimit:          args.to 7: per_hour 2" in out.getvalue()
        )


def test_an_array_is_masked_where_the_handler_has_the_parameter(paid):
    Job.objects.enqueue("bank.pay", [SECRET, [], 5], unique=None)
    out = io.StringIO()
    call_command("jobs", "list", "--json", stdout=out)
    assert '["[redacted]", [], 5]' in out.getvalue()
    assert_hidden(out.getvalue())


def test_an_explanation_that_is_refused_does_not_quote_it(paid):
    err = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("jobs", "explain", "bank.pay", "--args", f'{{"iban": "{SECRET}\\u0000"}}', "--json", stderr=err)
    assert_hidden(err.getvalue())
