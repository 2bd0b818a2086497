"""Draw what a second enqueue does, for each strategy and each state of the first job."""

from drawing import box, picture, write

from django_ojs_unique import JobState, OnConflict, UniquePolicy, presets

POLICIES = {
    "reject": UniquePolicy(keys=["type", "args"]),
    "ignore": UniquePolicy(keys=["type", "args"], on_conflict="ignore"),
    "replace": UniquePolicy(keys=["type", "args"], on_conflict="replace"),
    "replace_in_place": UniquePolicy(keys=["type", "args"], on_conflict="replace_in_place"),
    "one waits": UniquePolicy(keys=["type", "args"], states=list(presets.WAITING), on_conflict="ignore"),
    "newest_waits()": presets.newest_waits(),
    'debounce("PT1M")': presets.debounce("PT1M"),
    'throttle("PT1H")': presets.throttle("PT1H"),
    'once_per_window("P1D")': presets.once_per_window("P1D"),
    "once ever": UniquePolicy(keys=["type", "args"], states=[*presets.INCOMPLETE, "completed"], on_conflict="ignore"),
}
STATES = {
    "waits": JobState.AVAILABLE,
    "runs": JobState.ACTIVE,
    "will be retried": JobState.RETRYABLE,
    "completed": JobState.COMPLETED,
    "gave up": JobState.DISCARDED,
}
COLOURS = {"rejected": "red", "deduplicated": "blue", "replaced": "yellow", "created": "green"}
LABEL = "What the second enqueue of the same work does. "
LEFT, TOP, WIDTH, HEIGHT = 190, 60, 110, 30


def outcome(policy: UniquePolicy, state: JobState) -> str:
    """Return the outcome of an enqueue that meets a job in this state, inside the period."""
    if state not in policy.states:
        return "created"
    return {OnConflict.REJECT: "rejected", OnConflict.IGNORE: "deduplicated"}.get(policy.on_conflict, "replaced")


def draw() -> str:
    """Return the SVG."""
    label, parts = LABEL, [write(16, 30, "the first job:", "note left")]
    parts += [write(LEFT + WIDTH * (place + 0.5), 30, said, "") for place, said in enumerate(STATES)]
    for row, (name, policy) in enumerate(POLICIES.items()):
        y = TOP + HEIGHT * row
        parts += [write(16, y + 5, name, "left")]
        cells = [outcome(policy, state) for state in STATES.values()]
        parts += [
            box(LEFT + WIDTH * (place + 0.5), y, WIDTH - 6, HEIGHT - 6, cell, COLOURS[cell])
            for place, cell in enumerate(cells)
        ]
        label += f"{name}: {', '.join(f'{said} {cell}' for said, cell in zip(STATES, cells, strict=True))}. "
    return picture(LEFT + WIDTH * len(STATES) + 10, TOP + HEIGHT * len(POLICIES) - 4, label.strip(), parts)


if __name__ == "__main__":
    print(draw(), end="")
