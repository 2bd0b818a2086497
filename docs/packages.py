"""Draw the packages in their order."""

from drawing import box, picture, write

from tests.layers import ORDER

BANDS = {
    "listeners": "exceptions signals hooks progress",
    "the meaning": "ojs unique",
    "the ground": "options conf db handlers lifecycle",
    "the heart": "enqueue",
    "stored jobs": "workflows operations models",
    "in JSON": "wire",
    "at work": "limits execution maintenance",
    "questions": "reporting",
    "surfaces": "tasks checks worker contrib testing api admin management",
}
"""What the picture calls packages that follow each other."""
HEIGHT, WIDTH, LEFT = 34, 760, 150


def draw() -> str:
    """Return the SVG. Raises AssertionError when a package has no band."""
    assert " ".join(BANDS.values()).split() == list(ORDER)
    parts, y, width = [], 10.0, WIDTH - LEFT - 10
    for name, packages in BANDS.items():
        kind = "blue" if name == "the heart" else "plain"
        parts += [write(10, y + HEIGHT / 2 + 5, name, "note left")]
        parts += [box(LEFT + width / 2, y + HEIGHT / 2, width, HEIGHT, kind=kind)]
        parts += [write(LEFT + 12, y + HEIGHT / 2 + 5, "  ·  ".join(packages.split()), "left")]
        y += HEIGHT + 8
    return picture(WIDTH, y + 2, "The packages in their order: each imports only from those above it", parts)


if __name__ == "__main__":
    print(draw(), end="")
