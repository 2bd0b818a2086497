"""A user's code, for type checkers: each ``type: ignore`` is a mistake that they must find."""

from datetime import datetime, timedelta
from typing import assert_type

from django_ojs_unique import (
    BulkEnqueueResult,
    EnqueueResult,
    JobContext,
    Limit,
    Outcome,
    UniquePolicy,
    job,
    presets,
)
from django_ojs_unique.enqueue.explain import Explanation
from django_ojs_unique.models import Job
from django_ojs_unique.tasks import task
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
    assert_type(context.job, Job)


@job("weather.fetch")
async def fetch(city: str) -> dict[str, str]:
    return {"city": city}


job("email.other", queues="mail")  # type: ignore[call-overload]

# Enqueue

assert_type(welcome.enqueue(1), EnqueueResult)
assert_type(welcome.enqueue(user_id=1, locale="de").outcome, Outcome)
assert_type(welcome.using(priority=5).enqueue(1).created, bool)
assert_type(welcome.using(delay="PT1M").enqueue(1).created, bool)
assert_type(welcome.enqueue(1).replaced, tuple[Job, ...])
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
export.using(prioritee=3)  # type: ignore[call-arg]
export.using(priority="high")  # type: ignore[arg-type]

# Enqueue by the manager

assert_type(Job.objects.enqueue("email.welcome", {"user_id": 1}, unique=daily), EnqueueResult)
assert_type(Job.objects.using("jobs").enqueue("email.welcome", [{"user_id": 1}]).deduplicated, bool)
assert_type(Job.objects.using("jobs").enqueue_many([welcome.item(1)], mode="atomic"), BulkEnqueueResult)
assert_type(Job.objects.enqueue_many([{"type": "email.welcome"}]).counts[Outcome.CREATED], int)
assert_type(Job.objects.filter(queue="mail").enqueue("email.welcome").job, Job)
assert_type(Job.objects.duplicates_of(Job()).first(), Job | None)
assert_type(Job.objects.remove(key="welcome", type="email.welcome"), Job | None)
assert_type(Job.objects.explain("email.welcome", {"user_id": 1}), Explanation)
assert_type(Job.objects.using("jobs").explain(verbose=True), str)
Job.objects.enqueue_on_commit("email.welcome", {"user_id": 1})

Job.objects.enqueue("email.welcome", limit=Limit(name="erp", running=5))
Job.objects.enqueue("email.welcome", delay=60, unique=presets.debounce("PT1M", args=["user_id"]))
Job.objects.enqueue("email.welcome", delay=timedelta(minutes=1), unique=UniquePolicy(delay=0.5))

presets.debounce()  # type: ignore[call-arg]
Job.objects.enqueue("email.welcome", delay=datetime.now())  # type: ignore[arg-type]
Job.objects.enqueue("email.welcome", scheduled_at=timedelta(minutes=1))  # type: ignore[arg-type]
Job.objects.enqueue(1)  # type: ignore[arg-type]
Job.objects.enqueue("email.welcome", uniqe=daily)  # type: ignore[arg-type]
Job.objects.enqueue("email.welcome", user_id=1)  # type: ignore[arg-type]
Job.objects.enqueue_many("email.welcome")  # type: ignore[arg-type]
Job.objects.using("jobs").enqueue({"type": "email.welcome"})  # type: ignore[arg-type]
Job.objects.enqueue_one("email.welcome")  # type: ignore[attr-defined]

# Tasks


@task(unique=daily, queue_name="mail")
def greet(user_id: int, locale: str = "en") -> str:
    return f"{user_id} {locale}"


@task(limit=Limit(key=["args.user_id"], running=1))
def limited(user_id: int) -> None: ...


@task(takes_context=True)
def count(context: object, parts: int) -> int:
    return parts


@task
def plain(user_id: int) -> None: ...


assert_type(greet.enqueue(1, locale="de").return_value, str)
assert_type(greet.using(unique=None, priority=5).enqueue(user_id=1).id, str)
assert_type(count.enqueue(3).return_value, int)
assert_type(count.get_result("1").return_value, int)
plain.enqueue(1)
limited.using(limit=[{"key": ["type"], "per_minute": 5}]).enqueue(1)
limited.using(limit=None).enqueue(1)

greet.enqueue("ada")  # type: ignore[arg-type]
greet.using(priority=5).enqueue()  # type: ignore[call-arg]
greet.using(run_after=datetime.now(), queue_name="mail", timeout=5)
greet.using(prioritee=3)  # type: ignore[call-arg]
limited.using(limit=3)  # type: ignore[arg-type]
greet.using(run_after=60)  # type: ignore[arg-type]
count.enqueue("3")  # type: ignore[arg-type]
plain.enqueue(1, locale="de")  # type: ignore[call-arg]
task(queue="mail")  # type: ignore[call-overload]

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
    await greet.aenqueue("ada")  # type: ignore[arg-type]
    assert_type(await Job.objects.aenqueue("email.welcome"), EnqueueResult)
    assert_type(await Job.objects.using("jobs").aenqueue_many([welcome.item(1)]), BulkEnqueueResult)
    assert_type(await Job.objects.aexplain("email.welcome"), Explanation)
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
    assert_not_enqueued("export.run", args__contains={"parts": 3}, delay=timedelta(hours=1))
    assert_not_enqueued("export.run", arg={})  # type: ignore[call-arg]
    with ojs_jobs.travel("PT1H"):
        ojs_jobs.assert_deduplicated(welcome, outcome="deduplicated")
        assert_type(ojs_jobs.run_jobs()[0].job, Job)
    travel(3600)
    travel([3600])  # type: ignore[arg-type]
