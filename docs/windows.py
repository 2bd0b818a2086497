"""Draw which enqueues run, and when, under the three policies that know time."""

from drawing import arrow, box, picture, write

PERIOD = 60
ENQUEUES = [10, 25, 50, 130, 175, 185]
"""In minutes. Each policy gets the same."""
LABEL = (
    "Time lines of six enqueues with a period of an hour. Debounce runs one job an hour after the last enqueue of each"
    " burst. Throttle runs the first at once, and ignores the others for an hour. Once per window runs one in each hour"
    " of the clock."
)
LEFT, SCALE, ROW = 150, 2.1, 78


def debounce(enqueues: list[int]) -> list[tuple[int, int]]:
    """Return the enqueue and the start of each job that runs, in minutes."""
    pairs = zip(enqueues, [*enqueues[1:], enqueues[-1] + PERIOD + 1], strict=True)
    return [(at, at + PERIOD) for at, following in pairs if following > at + PERIOD]


def throttle(enqueues: list[int]) -> list[tuple[int, int]]:
    admitted: list[int] = []
    for at in enqueues:
        if not admitted or at >= admitted[-1] + PERIOD:
            admitted.append(at)
    return [(at, at) for at in admitted]


def once_per_window(enqueues: list[int]) -> list[tuple[int, int]]:
    first = {at // PERIOD: at for at in reversed(enqueues)}
    return [(at, at) for at in sorted(first.values())]


POLICIES = {"debounce": debounce, "throttle": throttle, "once_per_window": once_per_window}


def draw() -> str:
    """Return the SVG."""
    parts = []
    for number, (name, runs) in enumerate(POLICIES.items()):
        parts += line(name.replace("_", " "), 58 + ROW * number, runs(ENQUEUES))
    bottom = 58 + ROW * len(POLICIES) - 22
    parts += [write(LEFT + SCALE * hour * PERIOD, bottom, f"{hour}:00") for hour in range(5)]
    return picture(730, bottom + 16, LABEL, parts)


def line(name: str, y: float, runs: list[tuple[int, int]]) -> list[str]:
    admitted = {at for at, _ in runs}
    hours = [LEFT + SCALE * hour * PERIOD for hour in range(5)]
    return [
        write(16, y + 5, name, "left"),
        arrow(f"M{LEFT - 10} {y} H{LEFT + SCALE * 270:g}"),
        *(arrow(f"M{x:g} {y - 6} V{y + 6}", "line") for x in hours),
        *(box(LEFT + SCALE * start + 14, y + 15, 28, 20, "run", "green") for _, start in runs),
        *(
            f'<circle class="{"green" if at in admitted else "plain"}" cx="{LEFT + SCALE * at:g}" cy="{y - 14}" r="6"/>'
            for at in ENQUEUES
        ),
        *([write(LEFT + SCALE * ENQUEUES[0] - 6, y - 28, "enqueues", "note left")] if name == "debounce" else []),
    ]


if __name__ == "__main__":
    print(draw(), end="")
