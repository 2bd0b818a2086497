"""Draw the state diagram from the table of moves."""

from functools import reduce

from drawing import arrow, box, picture, write

from django_ojs_unique.ojs.states import INCOMPLETE, MOVES, TERMINAL, JobState

CENTRES = {
    JobState.SCHEDULED: (85, 75),
    JobState.PENDING: (85, 150),
    JobState.AVAILABLE: (270, 110),
    JobState.ACTIVE: (450, 110),
    JobState.RETRYABLE: (360, 215),
    JobState.COMPLETED: (660, 75),
    JobState.CANCELLED: (660, 150),
    JobState.DISCARDED: (660, 225),
}
WIDTH, HEIGHT = 110, 36
FRAME = (15, 15, 510, 240)
"""The superstate: a move that each state in it can make is drawn once, from its edge."""
PATHS = {
    (JobState.SCHEDULED, JobState.AVAILABLE): "M140 80 L213 100",
    (JobState.PENDING, JobState.AVAILABLE): "M140 145 L213 120",
    (JobState.AVAILABLE, JobState.ACTIVE): "M325 103 H393",
    (JobState.ACTIVE, JobState.AVAILABLE): "M395 117 H327",
    (JobState.ACTIVE, JobState.RETRYABLE): "M435 128 L395 195",
    (JobState.RETRYABLE, JobState.AVAILABLE): "M325 197 L285 130",
    (JobState.ACTIVE, JobState.COMPLETED): "M505 100 L603 80",
    (JobState.CANCELLED, JobState.AVAILABLE): "M715 150 H723 V285 H240 V130",
    (JobState.CANCELLED, JobState.SCHEDULED): "M715 150 H723 V285 H22 V75 H28",
    (JobState.CANCELLED, JobState.PENDING): "M715 150 H723 V285 H22 V150 H28",
    (JobState.DISCARDED, JobState.AVAILABLE): "M660 243 V285 H240 V130",
    (JobState.DISCARDED, JobState.SCHEDULED): "M660 243 V285 H22 V75 H28",
    (JobState.DISCARDED, JobState.PENDING): "M660 243 V285 H22 V150 H28",
    JobState.CANCELLED: "M525 150 H603",
    JobState.DISCARDED: "M525 225 H603",
}


def draw() -> str:
    """Return the SVG. Raises KeyError for a move that has no path yet."""
    of_all = reduce(frozenset.intersection, (MOVES[state] for state in INCOMPLETE))
    moves = [(source, target) for source in JobState for target in JobState if target in MOVES[source] - of_all]
    x, y, width, height = FRAME
    return picture(
        730,
        300,
        "The moves of a job",
        [
            box(x + width / 2, y + height / 2, width, height, kind="frame"),
            write(x + 12, y + 20, "not finished", "note left"),
            *(arrow(PATHS[move]) for move in [*moves, *sorted(of_all)]),
            *(
                box(*CENTRES[state], WIDTH, HEIGHT, state, "plain" if state in TERMINAL else "blue")
                for state in JobState
            ),
        ],
    )


if __name__ == "__main__":
    print(draw(), end="")
