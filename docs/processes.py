"""Draw the processes of a deployment, and who talks to whom."""

from drawing import arrow, box, picture, write

LABEL = (
    "Web servers and any number of workers run the same Django project, and meet in one database only. Views enqueue"
    " jobs in their own transaction; workers claim and finalize them; the admin reads the same rows. Programs in other"
    " languages enqueue and work over the HTTP API of the web servers."
)


def draw() -> str:
    """Return the SVG."""
    return picture(
        730,
        270,
        LABEL,
        [
            box(90, 60, 156, 50, "browsers"),
            box(90, 195, 156, 60, "clients and workers|in other languages"),
            box(300, 128, 150, 210, kind="frame"),
            write(300, 44, "web servers"),
            box(300, 80, 120, 46, "your views", "blue"),
            box(300, 138, 120, 46, "admin", "blue"),
            box(300, 196, 120, 46, "HTTP API", "blue"),
            box(480, 138, 120, 110, "database:|your tables|and the jobs", "yellow"),
            box(645, 128, 140, 210, kind="frame"),
            write(645, 44, "workers"),
            box(645, 80, 112, 46, "runworker", "green"),
            box(645, 138, 112, 46, "runworker", "green"),
            box(645, 196, 112, 46, "...", "green"),
            arrow("M168 60 L238 78"),
            arrow("M168 70 L238 132"),
            arrow("M168 196 H238"),
            arrow("M360 80 L418 112"),
            arrow("M360 138 H418"),
            arrow("M360 196 L418 164"),
            arrow("M589 80 L542 112"),
            arrow("M589 138 H542"),
            arrow("M589 196 L542 164"),
            write(
                365,
                258,
                "There is no broker: all of them meet in the database, whose NOTIFY wakes idle workers (PostgreSQL).",
            ),
        ],
    )


if __name__ == "__main__":
    print(draw(), end="")
