"""What a row says of its uniqueness: a table of cases, each a row and the sentence that a person reads first."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from django_ojs_unique import UniquePolicy
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import ALL, INCOMPLETE, TERMINAL
from django_ojs_unique.reporting.uniqueness import Recomputed, against, recompute, uniqueness
from django_ojs_unique.unique.fingerprint import canonical_key, fingerprint
from django_ojs_unique.unique.keys import HOLDING

CREATED = datetime(2026, 11, 21, 13, 2, tzinfo=UTC)
"""Two minutes past two in the project's time zone, Berlin."""
NOW = CREATED + timedelta(minutes=30)
OTHER = UUID("019ab000-0000-7000-8000-000000000001")
COMPLETED = [*INCOMPLETE, "completed"]

FREE = frozenset()


def row(state="available", holds=None, **fields):
    """Return an unsaved row as an enqueue makes it, then moved to a state."""
    options = {
        name: fields.pop(name) for name in ("unique", "key", "key_scope", "args", "scheduled_at") if name in fields
    }
    options.setdefault("args", {"user_id": 7})
    job = read(Request(type="email.send", **options), Job, CREATED).job
    job.state = state
    if state in TERMINAL:
        job.finished_at = CREATED + timedelta(minutes=1)
        if state not in job.unique_states:
            job.unique_states = FREE
    if holds is not None:
        job.unique_states = holds
    return changed(job, **fields)


def changed(job, **fields):
    """Return the row as somebody has changed it manually."""
    for name, value in fields.items():
        setattr(job, name, value)
    return job


def policy(**options):
    return UniquePolicy(keys=["type", "args"], args_keys=["user_id"], **options).to_dict()


START = "2026-11-21 14:02:00 CET"
CASES = {
    "a plain job": (row(), "Not unique: it was enqueued without a policy."),
    "one that ran without a policy": (
        row(started_at=CREATED),
        "Not unique: it was enqueued without a policy, or lost its job key to a newer enqueue while it ran.",
    ),
    "no limit": (
        row(unique=policy()),
        f"Holds its key since {START}, against type + args.user_id, until it is completed, cancelled or discarded.",
    ),
    "a period": (
        row(unique=policy(period="PT1H")),
        f"Holds its key since {START}, against type + args.user_id, until 2026-11-21 15:02:00 CET"
        " or until it is completed, cancelled or discarded, whichever comes first.",
    ),
    "a period that looks at completed jobs": (
        row(unique=policy(period="PT1H", states=COMPLETED)),
        f"Holds its key since {START}, against type + args.user_id, until 2026-11-21 15:02:00 CET"
        " or until it is cancelled or discarded, whichever comes first.",
    ),
    "every state": (
        row(unique=policy(states=list(ALL))),
        f"Holds its key since {START}, against type + args.user_id, for as long as its row exists.",
    ),
    "a fixed window": (
        row(unique=policy(period="PT1H", window="fixed")),
        f"Holds its key since {START}, against type + args.user_id + its window, until 2026-11-21 15:00:00 CET"
        " or until it is completed, cancelled or discarded, whichever comes first.",
    ),
    "a fixed window that ended": (
        row(unique=policy(period="PT15M", window="fixed")),
        "No longer in the way: its window ended at 2026-11-21 14:15:00 CET,"
        " and enqueues since then have another window in their key.",
    ),
    "the retention": (
        row(state="completed", unique=policy(window="retention", states=COMPLETED)),
        "Counts as a duplicate for enqueues that look at completed jobs, until it is pruned.",
    ),
    "a live job whose period is over": (
        row(unique=policy(period="PT5M")),
        f"Holds its unique key since {START}, but no longer counts: its period ended at 2026-11-21 14:07:00 CET."
        " The next enqueue under its policy is admitted, and takes the unique key from it.",
    ),
    "a completed job": (
        row(state="completed", unique=policy()),
        "No longer holds its key: it is completed since 2026-11-21 14:03:00 CET,"
        " and its policy does not count completed jobs.",
    ),
    "a completed job that counts": (
        row(state="completed", unique=policy(period="PT1H", states=COMPLETED)),
        "Counts as a duplicate for enqueues that look at completed jobs, until 2026-11-21 15:02:00 CET.",
    ),
    "a completed job that was passed": (
        row(state="completed", holds=FREE, unique=policy(states=COMPLETED)),
        "Counts as a duplicate for enqueues that look at completed jobs, for as long as its row exists.",
    ),
    "a completed job that counted": (
        row(state="completed", unique=policy(period="PT5M", states=COMPLETED)),
        "No longer holds its key: its window ended at 2026-11-21 14:07:00 CET.",
    ),
    "a replaced job": (
        row(state="cancelled", unique=policy(), replaced_by_id=OTHER),
        f"No longer holds its key: it is cancelled since 2026-11-21 14:03:00 CET, replaced by job {OTHER},"
        " and its policy does not count cancelled jobs.",
    ),
    "a live job without its unique key": (
        row(holds=FREE, unique=policy()),
        "Is available, but does not hold its unique key: a newer job was admitted past it, or it was retried.",
    ),
    "one that left": (
        row(holds=FREE, unique=policy(), fingerprint=None),
        "Taken out of uniqueness manually: it holds no key, and counts as a duplicate for nobody.",
    ),
    "one that left its job key": (
        row(holds=FREE, key="inbox", fingerprint=None),
        "Taken out of uniqueness manually: it no longer holds the job key 'inbox',"
        " and the next enqueue with it is admitted.",
    ),
    "a job key": (
        row(key="inbox"),
        f"Holds the job key 'inbox' (within its type) since {START}, until it is completed or cancelled.",
    ),
    "a job key among all types": (
        row(key="inbox", key_scope="global"),
        f"Holds the job key 'inbox' (among all types) since {START}, until it is completed or cancelled.",
    ),
    "a dead job with a key": (
        row(state="discarded", holds=HOLDING, key="inbox"),
        f"Holds the job key 'inbox' (within its type) since {START}, until it is completed or cancelled.",
    ),
    "a completed job with a key": (
        row(state="completed", key="inbox"),
        "No longer holds the job key 'inbox' (within its type): it is completed since 2026-11-21 14:03:00 CET.",
    ),
    "a retried job with a key": (
        row(holds=FREE, key="inbox"),
        "Has the job key 'inbox' (within its type), but does not hold it:"
        " a newer job was admitted past it, or it was retried.",
    ),
    "a key with control characters": (
        changed(row(key="a", fingerprint="f" * 64), key="a\x1b[31m"),
        f"Holds the job key 'a\\x1b[31m' since {START}, until it is completed or cancelled.",
    ),
    "a fingerprint alone": (
        row(fingerprint="f" * 64),
        "It has a fingerprint, but neither a policy nor a job key.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_sentence_says_how_it_stands(name):
    job, sentence = CASES[name]
    assert uniqueness(job, NOW).sentences[0] == sentence


def test_a_policy_that_was_broken_manually_is_told_with_its_hint():
    job = row(unique=policy())
    job.unique = {"keys": ["colour"]}
    said = uniqueness(job, NOW)
    assert said.problem in said.sentences[0]
    assert said.sentences[1].startswith("It keeps others of its fingerprint out for as long as it is active, available")
    assert "jobs verify --fix" in said.sentences[2]
    assert recompute(job).note == "There is no text, as the policy cannot be read."


@pytest.mark.parametrize(
    ("on_conflict", "begins"),
    [
        ("reject", "A duplicate is refused with DuplicateJob"),
        ("ignore", "A duplicate is answered with this job"),
        ("replace", "A duplicate replaces this job"),
        ("replace_except_schedule", "A duplicate replaces this job"),
    ],
)
def test_the_strategy_and_what_a_retry_does_are_said(on_conflict, begins):
    said = uniqueness(row(unique=policy(on_conflict=on_conflict, on_retry="discard")), NOW)
    assert said.sentences[1].startswith(begins)
    assert said.sentences[2].endswith("is discarded instead.")


def test_a_finished_job_that_counts_is_not_said_to_be_replaced():
    job = row(state="completed", unique=policy(states=COMPLETED, on_conflict="replace"))
    assert uniqueness(job, NOW).sentences[1] == "A duplicate is admitted, and this job stays as it is."


def test_a_finished_job_that_does_not_count_has_no_strategy_to_tell():
    assert len(uniqueness(row(state="completed", unique=policy()), NOW).sentences) == 1


def test_a_state_that_the_policy_does_not_count_is_told():
    said = uniqueness(row(state="active", unique=policy(states=["available"])), NOW)
    assert said.holds
    assert not said.counts
    assert said.sentences[1].startswith("Its policy does not count active jobs")


def test_a_live_job_without_its_unique_key_may_still_count():
    said = uniqueness(row(holds=FREE, unique=policy()), NOW)
    assert (said.holds, said.counts) == (False, True)
    assert said.sentences[1].startswith("It still counts as a duplicate for enqueues that look at available jobs")


def test_rewritings_by_a_key_are_counted():
    assert uniqueness(row(key="inbox", revision=1), NOW).sentences[-1] == "It was rewritten by its key 1 time."
    assert "takes the key from it" in uniqueness(row(state="active", key="inbox"), NOW).sentences[1]


def test_what_is_compared_names_each_member():
    whole = UniquePolicy(keys=["type", "queue", "args", "meta"], meta_keys=["/tenant/id", "region"])
    assert against(whole) == "type + queue + args + meta/tenant/id + meta.region"


def test_the_canonical_text_is_computed_again():
    job = row(unique=policy())
    again = recompute(job)
    assert (again.text, again.fingerprint, again.note) == (
        '{"args":{"user_id":7},"type":"email.send"}',
        job.fingerprint,
        "",
    )


def test_a_row_that_was_changed_since_is_told():
    job = row(unique=policy())
    job.args = {"user_id": 8}
    assert recompute(job).note.startswith("The stored fingerprint is not the one of this text")
    job.args = {}
    assert recompute(job).note.startswith("The text cannot be computed again: ")
    job.args, job.fingerprint_scheme = {"user_id": 8}, 0
    assert "is of scheme 0" in recompute(job).note
    job.payload_pruned = True
    assert "pruned" in recompute(job).note


def test_the_window_that_a_waiting_enqueue_named_is_found():
    job = row(unique=policy(period="PT15M", window="fixed"))
    job.created_at = CREATED + timedelta(minutes=15)
    assert recompute(job).fingerprint == job.fingerprint


def test_the_scope_of_a_key_is_found():
    job = row(key="inbox", key_scope="global", payload_pruned=True)
    assert recompute(job).text == canonical_key("inbox", type=None)
    assert fingerprint(recompute(job).text) == job.fingerprint


def test_a_job_without_a_policy_has_no_text():
    assert recompute(row()) == Recomputed()
