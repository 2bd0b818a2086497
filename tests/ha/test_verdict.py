"""What the scenarios say of a cluster that lost commits, and of a package that lost jobs."""

from uuid import UUID

import pytest

from tests.ha.verdict import Call, verdict

JOB, OTHER, WITNESS, LATER = map(UUID, map("{:032x}".format, range(4)))
KEY = "once 1"


def created(job, witness=None, key=KEY):
    return Call(key, 0.0, "created", job, witness)


def blamed(calls, rows, ran=(), witnesses=()):
    found = verdict(calls, rows, ran, witnesses)
    return {name for name in ("cluster", "package") if getattr(found, name)}


def test_nothing_is_missing():
    found = verdict([created(JOB, WITNESS)], {JOB: KEY}, {JOB}, {WITNESS})
    assert (found.lost, found.twice, found.cluster, found.package) == (set(), set(), "", "")


def test_the_cluster_lost_a_job_with_the_commit_after_it():
    found = verdict([created(JOB, WITNESS), created(OTHER, LATER)], {OTHER: KEY}, (), {LATER})
    assert (found.lost, found.twice, found.package) == ({JOB}, {KEY}, "")
    assert "1 plain rows" in found.cluster
    assert "1 jobs" in found.cluster


def test_the_package_lost_a_job_if_the_commit_after_it_is_there():
    found = verdict([created(JOB, WITNESS)], {}, (), {WITNESS})
    assert (found.lost, found.cluster) == ({JOB}, "")
    assert str(JOB) in found.package


def test_a_key_that_is_stored_twice_is_the_packages_fault():
    found = verdict([], {JOB: KEY, OTHER: KEY}, (), ())
    assert (found.twice, found.cluster) == ({KEY}, "")
    assert KEY in found.package


@pytest.mark.parametrize(
    ("calls", "rows", "ran", "witnesses", "who"),
    [
        ([created(JOB, WITNESS)], {JOB: KEY}, (), (), {"cluster"}),
        ([created(JOB)], {}, (), (), {"package"}),
        ([created(JOB), created(OTHER, WITNESS, "free 1")], {OTHER: ""}, (), (), {"cluster"}),
        ([created(JOB, WITNESS), created(OTHER, LATER, "free 1")], {}, (), {LATER}, {"cluster", "package"}),
        ([created(JOB, WITNESS), created(OTHER, LATER)], {JOB: KEY, OTHER: KEY}, (), (), {"cluster", "package"}),
        ([created(JOB), created(OTHER)], {JOB: KEY, OTHER: ""}, (), (), {"package"}),
        ([created(JOB), Call(KEY, 0.0, "deduplicated", OTHER)], {JOB: KEY, OTHER: ""}, (), (), set()),
        ([], {}, {JOB}, (), {"package"}),
        ([created(OTHER, WITNESS)], {OTHER: KEY}, {JOB}, (), {"cluster"}),
        ([Call(KEY, 0.0, "OperationalError")], {}, (), (), set()),
        ([created(JOB, WITNESS, "free 1"), created(OTHER, None, "free 1")], {JOB: "", OTHER: ""}, (), {WITNESS}, set()),
    ],
    ids=[
        "only plain rows are gone",
        "a job is gone, nothing else",
        "a job without a witness, and plain rows",
        "one with its plain row, one without",
        "plain rows are gone, and a key is stored twice",
        "a key is answered twice as created",
        "a key is answered once as created",
        "an unknown job ran",
        "an unknown job ran, and plain rows are gone",
        "an enqueue failed",
        "a policy that admits a key again",
    ],
)
def test_who_is_blamed(calls, rows, ran, witnesses, who):
    assert blamed(calls, rows, ran, witnesses) == who


def test_a_job_seen_before_a_commit_that_is_kept_is_not_the_clusters_loss():
    seen = Call(KEY, 0.0, "deduplicated", JOB, LATER)
    assert blamed([created(JOB, WITNESS), seen], {}, (), {LATER}) == {"cluster", "package"}
