"""The task of `peers.django_tasks_db`, in a module of its own, as task paths are importable names."""

from django_tasks import task


@task()
def noop(i: int) -> None:
    """Do nothing."""
