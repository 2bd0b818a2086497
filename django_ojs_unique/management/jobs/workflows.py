"""Subcommands about workflows: workflows, workflow, cancel-workflow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ...db.clock import database_now
from ...models import Workflow
from ...ojs.words import counted
from ...ojs.workflows import Kind, WorkflowState
from ...reporting.text import age, distance, duration_text, harmless
from ...reporting.workflows import Node, job_counts, stops, tree
from ..arguments import whole_number
from .answers import fields
from .subcommand import Subcommand, read_id, read_word


class OnWorkflows(Subcommand):
    """A subcommand about workflows."""

    def found(self, id: UUID) -> Any:
        """Return a workflow. Raises CommandError if there is none."""
        workflow = Workflow.objects.using(self.using).filter(pk=id).first()
        if workflow is None:
            raise CommandError(f"There is no workflow {id} in database {self.using!r}. It may have been pruned.")
        return workflow


class Workflows(OnWorkflows):
    """List workflows, the newest first: those that are not part of another one."""

    name = "workflows"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        states = ", ".join(WorkflowState)
        parser.add_argument(
            "--state",
            nargs="+",
            action="extend",
            type=lambda text: read_word(text, WorkflowState, "state"),
            metavar="STATE",
            help=f"Only workflows in these states: {states}.",
        )
        parser.add_argument(
            "--kind",
            type=lambda text: read_word(text, Kind, "kind"),
            metavar="KIND",
            help=f"Only this kind: {', '.join(Kind)}.",
        )
        parser.add_argument("--name", metavar="NAME", help="Only workflows with this name.")
        parser.add_argument("--limit", type=whole_number, default=20, metavar="N", help="At most so many (default 20).")

    def run(
        self, *, state: list[WorkflowState] | None, kind: Kind | None, name: str | None, limit: int, **options: Any
    ) -> None:
        wanted = {"state__in": state, "type": kind, "name": name}
        wanted = {lookup: value for lookup, value in wanted.items() if value is not None}
        workflows = Workflow.objects.using(self.using).roots()
        found = list(workflows.filter(**wanted).order_by("-created_at", "-pk")[: limit + 1])
        shown, now = found[:limit], database_now(self.using)
        progress = job_counts(shown, self.using)
        self.answer([{**fields(one), **_counts(progress[one.pk])} for one in shown])
        if not found:
            none = "No workflow matches. Leave a filter out to match others."
            hint = f"There are no workflows in database {self.using!r}. chain(...).enqueue() makes one."
            self.say(none if wanted and workflows.exists() else hint)
            return
        rows = [
            (one.pk, one.state, one.type, progress[one.pk], age(one.created_at, now), _took(one), one.name)
            for one in shown
        ]
        self.print_table(["id", "state", "kind", "jobs done", "age", "took", "name"], rows, cut=[6])
        if len(found) > limit:
            self.say(f"There are more: --limit {limit * 5} shows up to {limit * 5}.")


class ShowWorkflow(OnWorkflows):
    """Show a workflow as a tree: each step or job, its state, attempts, duration, and its result or error.

    A member without a job says what it waits for. Of many members, the failed and unfinished ones come first, and the
    rest is counted.
    """

    name = "workflow"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        _add_id(parser)

    def run(self, *, id: UUID, **options: Any) -> None:
        workflow, now = self.found(id), database_now(self.using)
        top = tree(workflow)
        self.answer({**_answer(top), **fields(workflow)})
        self.say(self.style.MIGRATE_HEADING(harmless(str(workflow))))
        if workflow.root_id is not None:
            self.say(f"It is part of workflow {workflow.root_id}.")
        for line in _lines(top, now, "  "):
            self.say(harmless(line))


class CancelWorkflow(OnWorkflows):
    """Cancel a workflow: its waiting jobs are cancelled, what is not enqueued yet never is, and no callback is called.

    Jobs that run end by themselves, without another attempt. Jobs that other workflows wait for go on.
    """

    name = "cancel-workflow"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        _add_id(parser)
        parser.add_argument("--active", action="store_true", help="Cancel the jobs that run as well.")
        parser.add_argument("--dry-run", action="store_true", help="Say what would be done; change nothing.")

    def run(self, *, id: UUID, active: bool, dry_run: bool, **options: Any) -> None:
        workflow = self.found(id)
        if dry_run:
            self._foretell(workflow, active=active)
            return
        done = workflow.cancel(active=active)
        self.answer({"id": workflow.pk, "state": workflow.state, "jobs": done.jobs, "running": done.running})
        self.say(f"Cancelled workflow {workflow.pk} with {counted(done.jobs, 'job')}.")
        if done.running:
            self.say(f"{counted(done.running, 'job')} still running, without another attempt.")

    def _foretell(self, workflow: Any, *, active: bool) -> None:
        found = stops(workflow)
        count, running = found.waiting + (found.running if active else 0), 0 if active else found.running
        self.answer(
            {"dry_run": True, "jobs": count, "running": running, "unborn": found.unborn, "shared": found.shared}
        )
        if workflow.state != WorkflowState.RUNNING:
            self.say(f"Nothing would be done: it is {workflow.state}.")
            return
        self.say(f"{counted(count, 'job')} would be cancelled, and {found.unborn:,} would never be enqueued.")
        if running:
            self.say(f"{counted(running, 'job')} would go on, without another attempt; --active cancels them as well.")
        if found.shared:
            self.say(f"{counted(found.shared, 'job')} would go on, for others.")
        self.say("Nothing was changed.")


def _lines(node: Node, now: datetime, indent: str) -> Iterator[str]:
    for one in node.nodes:
        yield from _line(one, now, indent, f"{one.member.position + 1}.")
    if node.more:
        counts = ", ".join(f"{count:,} {'unfinished' if name == 'open' else name}" for name, count in node.more.items())
        yield f"{indent}and {node.more.total():,} more ({counts})"
    for one in node.callbacks:
        yield from _line(one, now, indent, f"{one.role}:")


def _line(node: Node, now: datetime, indent: str, label: str) -> Iterator[str]:
    yield f"{indent}{label} {node.name}  {'  '.join(_facts(node, now))}"
    for line in (node.result and f"result: {node.result}", _error(node)):
        if line:
            yield f"{indent}   {line}"
    yield from _lines(node, now, f"{indent}   ")


def _facts(node: Node, now: datetime) -> Iterator[str]:
    yield "not needed" if node.state == "skipped" else node.state
    if node.waits:
        yield node.waits
    if node.workflow is not None:
        yield f"{node.type} {node.workflow.pk}"
    if node.job is not None:
        if node.job.attempt:
            yield f"attempt {node.job.attempt}/{node.job.most_attempts}"
        if node.state == "pending" and node.job.run_at is not None:
            yield f"{node.job.state}, due {distance(node.job.run_at, now)}"
    if (took := node.duration(now)) is not None:
        yield duration_text(took)
    if node.stands_in:
        yield f"stands in, from workflow {node.made_by.pk}" if node.made_by else "stands in"
    if node.job is not None:
        yield f"job {node.job.pk}"


def _error(node: Node) -> str:
    error = node.error
    parts = [str(error[name]) for name in ("code", "message") if error.get(name)]
    return f"error: {': '.join(parts)}" if parts else ""


def _answer(node: Node) -> dict[str, Any]:
    """Return the node of a tree for programs."""
    answer: dict[str, Any] = {"state": node.state, "type": node.type, "name": node.name}
    if node.member is not None:
        answer |= {"index": node.member.position, "job_id": node.job and node.job.pk, "waits": node.waits or None}
        answer |= {"result": node.result or None, "error": node.error or None, "stands_in": node.stands_in}
        answer |= dict(zip(("started_at", "finished_at"), node.span, strict=True))
    if node.job is not None:
        answer |= {"attempt": node.job.attempt, "max_attempts": node.job.most_attempts, "job_state": node.job.state}
    if node.workflow is not None:
        answer |= {"workflow_id": node.workflow.pk, "members": [_answer(one) for one in node.nodes]}
        answer |= {"more": dict(node.more), "callbacks": {one.role: _answer(one) for one in node.callbacks}}
    return answer


def _counts(progress: Any) -> dict[str, int]:
    return {f"jobs_{name}": getattr(progress, name) for name in ("total", "completed", "failed", "cancelled")}


def _took(workflow: Any) -> str:
    if workflow.finished_at is None:
        return "-"
    return duration_text(workflow.finished_at - (workflow.started_at or workflow.created_at))


def _add_id(parser: CommandParser) -> None:
    parser.add_argument("id", type=lambda text: read_id(text, "workflows"), metavar="ID", help="The workflow's id.")
