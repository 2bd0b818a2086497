"""A user's code, for type checkers: each ``type: ignore`` is a mistake that they must find."""

from datetime import datetime, timedelta
from typing import assert_type

from django_ojs_unique import EnqueueResult, JobContext, Outcome, UniquePolicy, job
from django_ojs_unique.models import Job
from django_ojs_unique.testing import (
    Captured,
    JobFixture,
    Ran,
    Suppressed,
    assert_enqueued,
    assert_not_enqueued,
    capture_jobs,
    run_jobs,
    run_one,
    travel,
)

daily = UniquePolicy(keys=["type", "args"], args_keys=["user_id"], period="P1D", on_conflict="ignore")


@job("email.welcome", queue="mail", unique=daily, timeout="PT30S")
def welcome(user_id: int, locale: str = "en") -> str:
    return f"{user_id} {locale}"


@job("export.run", takes_context=True)
def export(context: JobContext, parts: int) -> None:
    context.progress(1 / parts, "begun")


@job("weather.fetch")
async def fetch(city: str) -> dict[str, str]:
    return {"city": city}


job("email.other", queues="mail")  # type: ignore[call-overload]

# Enqueue

assert_type(welcome.enqueue(1), EnqueueResult)
assert_type(welcome.enqueue(user_id=1, locale="de").outcome, Outcome)
assert_type(welcome.using(priority=5).enqueue(1).created, bool)
export.enqueue(3)
export.enqueue(parts=3)
fetch.enqueue("Berlin")
welcome.item(1, locale="de")
welcome.enqueue_on_commit(1, locale="de")
welcome.using(priority=5).enqueue_on_commit(user_id=1)
export.enqueue_on_commit(3)

welcome.enqueue()  # type: ignore[call-arg]
welcome.enqueue("ada")  # type: ignore[arg-type]
welcome.enqueue(1, lang="de")  # type: ignore[call-arg]
welcome.item("ada")  # type: ignore[arg-type]
welcome.enqueue_on_commit("ada")  # type: ignore[arg-type]
export.enqueue_on_commit()  # type: ignore[call-arg]
export.enqueue("3")  # type: ignore[arg-type]
export.using(queue="slow").enqueue()  # type: ignore[call-arg]

# Call

assert_type(welcome(1), str)
welcome("ada")  # type: ignore[arg-type]


def call(context: JobContext) -> None:
    export(context, 3)
    export(3)  # type: ignore[call-arg, arg-type]


async def view() -> bool:
    result = await welcome.aenqueue(1)
    await welcome.aenqueue("ada")  # type: ignore[arg-type]
    assert_type(await fetch("Berlin"), dict[str, str])
    return result.deduplicated


# Test


def test(ojs_jobs: JobFixture) -> None:
    assert_type(run_jobs(types=[welcome, "export.run"], queues="mail"), list[Ran])
    assert_type(run_one(), Ran | None)
    with travel("P1D"), travel(timedelta(days=1)), capture_jobs() as jobs:
        assert_type(jobs, Captured)
        assert_type(jobs[0], Job)
        assert_type(jobs.suppressed, list[Suppressed])
    assert_type(assert_enqueued(welcome, args={"user_id": 1}, scheduled_at=datetime.now(), count=1), Job)
    assert_not_enqueued("export.run", args__contains={"parts": 3})
    assert_not_enqueued("export.run", arg={})  # type: ignore[call-arg]
    with ojs_jobs.travel("PT1H"):
        ojs_jobs.assert_deduplicated(welcome, outcome="ignored")
        assert_type(ojs_jobs.run_jobs()[0].job, Job)
    travel(3600)  # type: ignore[arg-type]
