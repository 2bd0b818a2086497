"""Draw the floors of the package."""

from drawing import box, picture, write

from tests.layers import FLOORS

BANDS = [
    ("the specification", 0, 1),
    ("the ground", 2, 6),
    ("the heart", 7, 7),
    ("rows and handlers", 8, 14),
    ("at work", 15, 18),
    ("surfaces", 19, 21),
]
"""What the picture calls some floors that lie above each other: its name, the lowest one, the highest one."""
HEIGHT, WIDTH, LEFT = 30, 760, 150


def draw() -> str:
    """Return the SVG. Raises AssertionError when a floor has no band."""
    parts, y, width = [], 10.0, WIDTH - LEFT - 10
    assert [number for _, low, high in BANDS for number in range(low, high + 1)] == list(range(len(FLOORS)))
    for name, low, high in reversed(BANDS):
        rooms = [FLOORS[number][0].replace(".", "django_ojs_unique") for number in range(high, low - 1, -1)]
        height = HEIGHT * len(rooms)
        kind = "blue" if name == "the heart" else "plain"
        parts += [write(10, y + height / 2 + 5, name, "note left")]
        parts += [box(LEFT + width / 2, y + height / 2, width, height, kind=kind)]
        parts += [
            write(LEFT + 12, y + HEIGHT * index + 20, "  ·  ".join(room.split()), "left")
            for index, room in enumerate(rooms)
        ]
        y += height + 8
    return picture(WIDTH, y + 2, "The floors of the package: imports only point downwards", parts)


if __name__ == "__main__":
    print(draw(), end="")
