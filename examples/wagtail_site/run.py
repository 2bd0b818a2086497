"""Edit a Wagtail site with and without unique tasks, compare what ran, and check that nothing is lost.

Needs Wagtail, and Django 6.1 or newer. SQLite by default; ``--database postgresql://user@host:5432/postgres`` makes and
drops two databases on a server.

    python examples/wagtail_site/run.py --saves 10
"""

import argparse
import email
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

HERE = Path(__file__).parent
NAMES = {
    "task.modelsearch.tasks.insert_or_update_object_task": "search index",
    "task.wagtail.tasks.update_reference_index_task": "reference index",
    "task.magazine.tasks.tell_readers": "mail to the readers",
}
MAIL = "task.magazine.tasks.tell_readers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=10, metavar="N", help="how often each page is saved")
    parser.add_argument("--database", metavar="URL", help="of a PostgreSQL server")
    options = parser.parse_args()
    without = play(options.saves, options.database, WITHOUT_UNIQUE="1")
    unique = play(options.saves, options.database)

    print(f"{'':20}  asked for  ran without unique  ran with unique")
    for type, name in NAMES.items():
        numbers = unique["asked"].get(type, 0), without["ran"].get(type, 0), unique["ran"].get(type, 0)
        print("{:20}  {:9}  {:18}  {:15}".format(name, *numbers))
    problems = [*mistakes("Without unique", without, options.saves), *mistakes("With unique", unique, 1)]
    if without["asked"] != unique["asked"] or without["ran"] != without["asked"]:
        problems.append(f"The two runs differ: {without['asked']}, of which ran {without['ran']}; {unique['asked']}")
    if options.saves > 1 and any(number >= unique["asked"][type] for type, number in unique["ran"].items()):
        problems.append(f"Some policy has no effect: {unique['asked']}, of which ran {unique['ran']}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print("The search index has the last text of every page. Each mail went out as often as it should: for each")
        print(f"page {options.saves} times without unique, and once with it.")
    return 1 if problems else 0


def mistakes(where, seen, mails):
    """Yield what is not as it must be; each page has been mailed ``mails`` times."""
    yield from (f"{where}: {text}" for text in seen["wrong"])
    if seen["failed"]:
        yield f"{where}: tasks failed: {seen['failed']}"
    if set(seen["asked"]) != set(NAMES):
        yield f"{where}: other tasks than expected: {seen['asked']}"
    if set(seen["mails"].values()) != {mails} or sum(seen["mails"].values()) != seen["ran"].get(MAIL):
        yield f"{where}: mails went out so often: {seen['mails']}; expected {mails} for each page"


def play(saves, server, **environment):
    """Edit a fresh site beside a worker; return what `manage.py edit` says, and the ``mails`` by their subjects."""
    with TemporaryDirectory() as folder, database(server, environment) as url:
        environment = {**os.environ, **environment, "SITE_FOLDER": folder, "DATABASE_URL": url}

        def manage(*words):
            command = [sys.executable, HERE / "manage.py", *words]
            return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

        manage("migrate", "--verbosity", "0")
        # Two runs for one page side by side could store the older text last.
        manage("jobs", "limit", "default", "1")
        with worker(environment, Path(folder, "worker.log")):
            seen = json.loads(manage("edit", "--saves", str(saves)))
        return {**seen, "mails": mails(Path(folder, "mails"))}


@contextmanager
def worker(environment, log):
    """Run ``manage.py runworker`` beside the block; it must end well at the block's end."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, HERE / "manage.py", "runworker"], env=environment, stdout=output, stderr=output
        )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            if process.wait(60):
                raise SystemExit(f"The worker ended with {process.returncode}.")
        except BaseException:
            print(log.read_text(), file=sys.stderr)
            raise
        finally:
            process.kill()
            process.wait()


@contextmanager
def database(server, environment):
    """Yield the URL of a database that exists during the block; an empty one stands for SQLite."""
    if not server:
        yield ""
        return
    import psycopg

    parts = urlsplit(server)
    name = f"wagtail_site_{os.getpid()}{'_without' if environment else ''}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield urlunsplit(parts._replace(path=f"/{name}"))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def mails(folder):
    """Return how often each subject was mailed."""
    sent = Counter()
    for file in folder.glob("*"):
        for message in file.read_text().split(f"\n{'-' * 79}\n"):
            if message:
                sent[email.message_from_string(message)["Subject"]] += 1
    return sent


if __name__ == "__main__":
    sys.exit(main())
