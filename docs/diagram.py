"""Draw the state diagram from the table of moves: ``python docs/diagram.py > docs/images/states.svg``.

The colours are fixed, and legible on a light page and on a dark one.
"""

from functools import reduce

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
    (JobState.DISCARDED, JobState.AVAILABLE): "M660 243 V285 H240 V130",
    (JobState.DISCARDED, JobState.SCHEDULED): "M660 243 V285 H22 V75 H28",
    JobState.CANCELLED: "M525 150 H603",
    JobState.DISCARDED: "M525 225 H603",
}
STYLE = """
    text { font: 14px system-ui, sans-serif; text-anchor: middle; fill: #1b1f24 }
    .live { fill: #dbeafe; stroke: #2563eb }
    .final { fill: #e5e7eb; stroke: #6b7280 }
    .frame { fill: none; stroke: #747c86; stroke-dasharray: 5 4 }
    .note { fill: #747c86; font-size: 12px; text-anchor: start }
    .move { fill: none; stroke: #747c86; stroke-width: 1.5; marker-end: url(#head) }
"""


def draw() -> str:
    """Return the SVG. Raises KeyError for a move that has no path yet."""
    of_all = reduce(frozenset.intersection, (MOVES[state] for state in INCOMPLETE))
    moves = [(source, target) for source in JobState for target in JobState if target in MOVES[source] - of_all]
    paths = [PATHS[move] for move in [*moves, *sorted(of_all)]]
    x, y, width, height = FRAME
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 730 300" role="img" aria-label="The moves of a job">',
            f"  <style>{STYLE}  </style>",
            '  <marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
            '    <path d="M0 0 L8 4 L0 8 Z" fill="#747c86"/>',
            "  </marker>",
            f'  <rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="12"/>',
            f'  <text class="note" x="{x + 12}" y="{y + 20}">not finished</text>',
            *(f'  <path class="move" d="{path}"/>' for path in paths),
            *(box(state) for state in JobState),
            "</svg>",
            "",
        ]
    )


def box(state: JobState) -> str:
    x, y = CENTRES[state]
    kind = "final" if state in TERMINAL else "live"
    return (
        f'  <rect class="{kind}" x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        f'<text x="{x}" y="{y + 5}">{state}</text>'
    )


if __name__ == "__main__":
    print(draw(), end="")
