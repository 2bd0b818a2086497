"""Write the page of the options of a job from their description: ``python docs/options.py > docs/options.md``."""

from django_ojs_unique.options import DECLARED, ENQUEUE, OPTIONS, Option

INTRODUCTION = """\
# Options of a job

`@job` declares the options marked `@job`; an enqueue overrides them. `Job.objects.enqueue()`, `handler.using()`, the
items of [bulk enqueues](batches.md) and the steps of [workflows](workflows.md) take those marked `enqueue`;
[periodic jobs](schedules.md) those marked `cron`. [HTTP](http.md#enqueue) and `jobs` over JSON use the names in the
last column. Lengths of time are ISO 8601 (`"PT30S"`), a `timedelta`, or seconds. None switches `unique`, `timeout` and
`limit` off.

| option | meaning | where | in JSON |
|---|---|---|---|
"""

PAGES = {
    "key": "keys.md",
    "lease": "stopping.md#leases",
    "limit": "limits.md",
    "retry": "worker.md#failure-and-retry",
    "unique": "policy.md",
}
"""What says more about an option."""


def write() -> str:
    """Return the page."""
    return INTRODUCTION + "".join(f"|{'|'.join(row(name, option))}|\n" for name, option in OPTIONS.items())


def row(name: str, option: Option) -> list[str]:
    places = {"@job": name in DECLARED, "enqueue": name in ENQUEUE, "cron": option.repeats}
    where = ", ".join(f"`{place}`" for place, takes in places.items() if takes)
    page = PAGES.get(name)
    cells = (
        f"[`{name}`]({page})" if page else f"`{name}`",
        option.help,
        where,
        ", ".join(f"`{one}`" for one in sorted(option.wire, key=lambda one: one != option.written)),
    )
    return [f" {cell} " if cell else " " for cell in cells]


if __name__ == "__main__":
    print(write(), end="")
