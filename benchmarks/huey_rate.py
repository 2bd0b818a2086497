"""Drain no-op tasks of huey from a new SQLite file by one thread, and print tasks per second: ``huey_rate COUNT``."""

import os
import sys
import tempfile
import time

from huey import SqliteHuey


def main(count: int) -> None:
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        huey = SqliteHuey(filename=f"{folder}/huey.sqlite3")

        @huey.task()
        def noop(i: int) -> None:
            nonlocal done
            done += 1

        for number in range(count):
            noop(number)
        consumer = huey.create_consumer(workers=1, periodic=False)
        begin = time.perf_counter()
        consumer.start()
        while done < count:
            time.sleep(0.005)
        print(done / (time.perf_counter() - begin), flush=True)
    os._exit(0)  # the consumer's threads never end by themselves


if __name__ == "__main__":
    main(int(sys.argv[1]))
