"""Who lost what was answered: the cluster, or the package that runs on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class Call:
    """One enqueue: what was asked, when the answer came, and what it was: an id, or an error.

    ``witness`` is a plain row. The same connection committed it after the answer, and that commit was answered, too.
    """

    key: str
    at: float
    outcome: str
    id: UUID | None = None
    witness: UUID | None = None


@dataclass(frozen=True)
class Verdict:
    """What is missing. ``cluster`` and ``package`` say what each of them did wrong; empty: nothing."""

    lost: Collection[UUID]
    twice: Collection[str]
    cluster: str
    package: str


def verdict(
    calls: Sequence[Call], rows: Mapping[UUID, str], ran: Collection[UUID], witnesses: Collection[UUID]
) -> Verdict:
    """Compare what was answered with the jobs, by id with their keys, and the witnesses that are stored.

    A server keeps commits in their order: if it has the witness, it had the job, and only the package can have lost it.
    Without its witness a job is the cluster's loss, if the cluster lost any witness that was answered.
    """
    answered = [call for call in calls if call.id is not None]
    gone = {call.witness for call in answered if call.witness}.difference(witnesses)
    missing = ({call.id for call in answered if call.id}.union(ran)) - rows.keys()
    kept = {call.id for call in answered if call.witness in witnesses}
    excused = {pk for pk in missing if gone and pk not in kept}
    created: dict[str, set[UUID | None]] = defaultdict(set)
    for call in answered:
        if call.outcome == "created" and call.key.startswith("once"):
            created[call.key].add(call.id)
    stored = {key for key, number in Counter(key for key in rows.values() if key).items() if number > 1}
    twice = stored | {key for key, ids in created.items() if len(ids) > 1}
    ours = stored | {key for key, ids in created.items() if len(ids - excused) > 1}
    cluster = package = ""
    if gone:
        cluster = (
            f"the cluster lost {len(gone)} plain rows whose commits it had answered, and with them {len(excused)} jobs"
        )
    if ours or missing - excused:
        package = f"the package lost jobs {missing - excused}, and admitted keys twice {ours}"
    return Verdict(missing, twice, cluster, package)
