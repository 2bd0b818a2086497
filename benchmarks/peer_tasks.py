"""The task of `peers.django_tasks_db`, in its own module, because a task's path must be importable."""

from django_tasks import task


@task()
def noop(i: int) -> None:
    """Do nothing."""
