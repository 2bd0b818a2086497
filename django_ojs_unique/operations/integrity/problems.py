"""The kinds of inconsistencies, and how each is repaired."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """A kind of inconsistency between rows, fingerprints and unique keys: what is wrong, and how it is repaired."""

    CONSTRAINT = (
        "The database does not keep the constraint ojs_unique_key",
        "only `manage.py migrate` can make it; MySQL and others cannot keep it",
    )
    STATE = (
        "A state that is none of the eight",
        "only you know which it was: set it by SQL, or delete the row; workers ignore it",
    )
    FINISH = (
        "A finished job without finished_at, or an unfinished one with it",
        "it is set to now, or cleared; no worker takes a job that has it",
    )
    TIMER = ("A run_at or a lease that the state does not have", "it is cleared; no lease expires beside a run_at")
    DUE = (
        "A scheduled or retryable job without run_at",
        "it is due when it was scheduled for, else now; without it, it would wait for ever",
    )
    LEASE = ("A running job without a lease", "its lease ends now, so that a worker rescues it")
    PLACE = ("An available job without enqueued_at", "it takes its place by created_at")
    ATTEMPTS = ("More attempts than the maximum, or fewer than none", "the maximum is raised, or they are set to 0")
    QUEUE = ("A queue without a name", "the job goes to the default queue")
    ARGS = (
        "Args that are neither an object nor an array",
        "only you know what they were: set them by SQL, or delete the row; the job's handler cannot be called",
    )
    SHAPE = ("Meta that is no object, or tags that are no array", "they are emptied")
    RETRY = ("A retry policy that cannot be read", "the job gets the default policy")
    LIMITS = ("Limits that cannot be read", "the job loses them; with them, no worker would claim it")
    DEAD_LETTER = ("A dead letter that was not discarded", "it is no dead letter any more")
    BLOCK = (
        "An available job that is blocked by what is none of its own",
        "it goes to its partition of the fair queue, or its limits are looked at again",
    )
    LOOSE = ("Unique states without a fingerprint", "they are dropped")
    POLICY = (
        "A policy or key that cannot be read, or does not fit the job",
        "the job loses it, and takes no more part in uniqueness",
    )
    STRAY = ("A fingerprint without a policy or a key", "the job loses it, and takes no more part in uniqueness")
    RULE = ("A waiting job on a unique queue from before the rule", "the job gets the rule's policy")
    SCHEME = ("A fingerprint of another scheme", "it is computed anew")
    FINGERPRINT = ("A fingerprint that its policy or key does not give", "it is computed anew")
    UNIQUE_STATES = (
        "Unique states that are not those of its policy or key",
        "it is set right; one that another job has is given up",
    )
    WINDOW = ("No end of the window, although the policy counts finished jobs", "it is computed anew")
    SHARED = ("Jobs that hold one unique key together", "the oldest keeps the unique key, the others go on without it")
    UNHELD = (
        "A unique key that no row holds in every state, although a live job of it does not hold it",
        "the row that holds it does so in every state, else the oldest live job",
    )
    KEY = (
        "Jobs that hold one key together",
        "the one that holds it keeps it, else the oldest; the others go on without it",
    )
    DUPLICATE = (
        "A waiting job that duplicates an older waiting one",
        "the oldest waits on, the newer ones are cancelled",
    )

    @property
    def problem(self) -> str:
        """What is wrong."""
        return self.value[0]

    @property
    def hint(self) -> str:
        """How it is repaired."""
        return self.value[1]


MANUAL = frozenset({Kind.CONSTRAINT, Kind.STATE, Kind.ARGS})
"""The kinds that ``--fix`` cannot repair."""
