"""Draw a chain with a group in it, and a batch with its callbacks."""

from drawing import arrow, box, picture, write

LABEL = (
    "A chain: pay, then pack and invoice side by side in a group, then mail. A batch: three jobs side by side; when the"
    " last one has ended, on_success is enqueued if all have completed, on_failure if one has failed, on_complete in"
    " both cases."
)


def draw() -> str:
    """Return the SVG."""
    return picture(
        730,
        330,
        LABEL,
        [
            write(20, 30, "chain(pay, group([pack, invoice]), mail)", "note left"),
            box(75, 90, 100, 40, "pay", "green"),
            box(285, 90, 150, 110, kind="frame"),
            write(285, 160, "group"),
            box(285, 66, 110, 38, "pack", "blue"),
            box(285, 114, 110, 38, "invoice", "blue"),
            box(495, 90, 100, 40, "mail"),
            arrow("M125 90 H208"),
            arrow("M360 90 H443"),
            write(166, 80, "completed"),
            write(402, 80, "all"),
            write(402, 108, "completed"),
            write(20, 200, "batch([a, b, c], on_success=..., on_failure=..., on_complete=...)", "note left"),
            box(75, 236, 100, 30, "a", "green"),
            box(75, 274, 100, 30, "b", "red"),
            box(75, 312, 100, 30, "c", "green"),
            box(285, 274, 150, 48, "when the last one|has ended", "yellow"),
            arrow("M125 236 L208 262"),
            arrow("M125 274 H208"),
            arrow("M125 312 L208 286"),
            box(495, 236, 130, 30, "on_complete", "blue"),
            box(495, 274, 130, 30, "on_failure", "blue"),
            box(495, 312, 130, 30, "on_success"),
            arrow("M360 266 L428 240"),
            arrow("M360 274 H428"),
            arrow("M360 282 L428 308", "line"),
            write(645, 241, "always"),
            write(645, 279, "b has failed"),
            write(645, 317, "not needed"),
        ],
    )


if __name__ == "__main__":
    print(draw(), end="")
