"""Draw what becomes of two enqueues of one key at the same moment."""

from drawing import arrow, box, picture, write

LABEL = (
    "Two requests enqueue the same job at the same moment. Request A inserts the row and is answered created. Request B"
    " waits at the unique index until A commits, and is answered deduplicated, with the job of A. If A rolls back, B is"
    " answered created."
)
A, INDEX, B = 110, 365, 620


def draw() -> str:
    """Return the SVG."""
    return picture(
        730,
        250,
        LABEL,
        [
            box(A, 35, 150, 36, "request A"),
            box(INDEX, 35, 210, 36, "the job's unique index", "yellow"),
            box(B, 35, 150, 36, "request B"),
            arrow(f"M{A} 53 V176"),
            arrow(f"M{B} 53 V176"),
            arrow(f"M{A} 95 H258"),
            write(183, 87, "enqueue user 42"),
            arrow(f"M{B} 95 H472"),
            write(547, 87, "enqueue user 42"),
            box(INDEX, 123, 210, 104, "A's row is stored|B waits|A commits"),
            arrow("M260 155 H114"),
            arrow("M470 155 H616"),
            box(A, 198, 180, 40, "created", "green"),
            box(B, 198, 180, 40, "deduplicated: A's job", "blue"),
            write(INDEX, 203, "exactly one is admitted"),
            write(INDEX, 236, "If A rolls back, B is created: nobody gets a job that never existed."),
        ],
    )


if __name__ == "__main__":
    print(draw(), end="")
