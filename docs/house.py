"""Draw the floors of the package: ``PYTHONPATH=. python docs/house.py > docs/images/house.svg``.

The colours are fixed, and legible on a light page and on a dark one.
"""

from tests.layers import FLOORS

BANDS = [
    ("the specification", 0, 1),
    ("the ground", 2, 6),
    ("the heart", 7, 7),
    ("rows and handlers", 8, 12),
    ("at work", 13, 16),
    ("surfaces", 17, 19),
]
"""What the picture calls some floors that lie above each other: its name, the lowest one, the highest one."""
HEIGHT, WIDTH, LEFT = 30, 760, 150
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
    .band { fill: #747c86 }
    .floor { fill: #e5e7eb; stroke: #6b7280 }
    .heart { fill: #dbeafe; stroke: #2563eb }
"""


def draw() -> str:
    """Return the SVG. Raises AssertionError when a floor has no band."""
    lines, y, width = [], 10, WIDTH - LEFT - 10
    assert [number for _, low, high in BANDS for number in range(low, high + 1)] == list(range(len(FLOORS)))
    for name, low, high in reversed(BANDS):
        rooms = [FLOORS[number][0].replace(".", "django_ojs_unique") for number in range(high, low - 1, -1)]
        height = HEIGHT * len(rooms)
        kind = "heart" if name == "the heart" else "floor"
        lines.append(f'  <text class="band" x="10" y="{y + height / 2 + 5}">{name}</text>')
        lines.append(f'  <rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        lines += [
            f'  <text x="{LEFT + 12}" y="{y + HEIGHT * index + 20}">{"  ·  ".join(room.split())}</text>'
            for index, room in enumerate(rooms)
        ]
        y += height + 8
    label = "The floors of the package: imports only point downwards"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 2}" role="img" aria-label="{label}">',
            f"  <style>{STYLE}  </style>",
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    print(draw(), end="")
