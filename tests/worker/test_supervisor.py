"""``runworker --processes``: children that die are replaced, and all end with their parent."""

import os
import re
import signal
import time

import pytest

from django_ojs_unique.models import Job
from django_ojs_unique.worker import Supervisor, supervisor
from tests.support.commands import enqueue
from tests.support.processes import PATIENCE, is_alive, many_files, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


def read(file, count):
    """Return the lines of a file once there are so many."""
    until(lambda: file.exists() and file.read_text().count("\n") >= count, f"there are {count} lines")
    return [line.split() for line in file.read_text().splitlines()]


def both_busy(place, *options, type="hold"):
    """Start two processes that run one job each; return the command and the events."""
    for _ in range(2):
        enqueue(type)
    command = place.runworker("--processes", "2", "--concurrency", "1", *options)
    events = place.wait_for("began", 2)
    assert len({event.pid for event in events}) == 2
    assert command.pid not in {event.pid for event in events}
    return command, events


def test_a_child_that_is_killed_is_started_again(place):
    command, (first, second) = both_busy(place, type="hold.shortly")
    place.wait_until_confirmed()
    os.kill(first.pid, KILL)
    again = place.wait_for("began", 3)[-1]
    assert (again.job, again.attempt) == (first.job, 2)
    assert again.pid not in (first.pid, second.pid, command.pid)
    assert f"(pid {first.pid}) died with -9" in command.output
    place.open("gate")
    for event in (first, second):
        place.wait(lambda id=event.job: Job.objects.filter(pk=id, state="completed").exists(), "the job completes")
    assert command.stop() == 0


@pytest.mark.parametrize("number", [TERM, INT])
def test_a_signal_to_the_parent_lets_all_running_jobs_finish(place, number):
    command, events = both_busy(place)
    command.signal(number)
    place.wait(lambda: command.output.count("Stopping:") == 3, "parent and children have heard the signal")
    place.open("gate")
    assert command.wait() == 0
    assert not any(is_alive(event.pid) for event in events)
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}


def test_ctrl_c_reaches_the_whole_group_and_counts_once(place):
    command, _ = both_busy(place)
    command.signal_group(INT)
    place.wait(lambda: command.output.count("Stopping:") == 3, "parent and children have heard the signal")
    place.open("gate")
    assert command.wait() == 0
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}


def test_a_service_manager_that_signals_the_children_as_well_ends_nothing_at_once(place):
    command, events = both_busy(place)
    for event in events:
        os.kill(event.pid, TERM)
    place.wait(lambda: command.output.count("Stopping:") == 2, "the children have heard the signal")
    command.signal(TERM)
    place.wait(lambda: command.output.count("Stopping:") == 3, "the parent has passed it on")
    place.open("gate")
    assert command.wait() == 0
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}


@pytest.mark.parametrize("number", [TERM, INT])
def test_two_signals_to_the_parent_end_all_at_once(place, number):
    command, events = both_busy(place)
    command.signal(number)
    place.wait(lambda: command.output.count("Stopping:") == 3, "parent and children have heard the signal")
    command.signal(number)
    assert command.wait() == 128 + number
    assert not any(is_alive(event.pid) for event in events)
    assert set(Job.objects.values_list("state", "attempt")) == {("active", 1)}


def test_children_whose_parent_is_killed_finish_what_runs_and_end(place):
    command, events = both_busy(place)
    command.signal(KILL)
    assert command.wait() == 128 + KILL
    place.wait(lambda: command.output.count("Stopping:") == 2, "the children have noticed")
    place.open("gate")
    place.wait(lambda: not any(is_alive(event.pid) for event in events), "the children end")
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}


def test_draining_with_several_processes_ends_by_itself_and_each_reports(place):
    for _ in range(50):
        enqueue("quick")
    command = place.runworker("--processes", "2", "--drain", PYTHONUNBUFFERED="")
    assert command.wait() == 0
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}
    assert Job.objects.count() == len(place.events("began")) == 50
    assert sum(map(int, re.findall(r"(\d+) completed", command.output))) == 50


def _supervise_with_a_signal_at_the_first_fork(parent):
    fork = os.fork

    def signal_and_fork():
        os.fork = fork
        os.kill(os.getpid(), TERM)
        return fork()

    os.fork = signal_and_fork
    return Supervisor(2, lambda number: signal.pause() or 0).run()


def test_a_signal_that_comes_while_children_are_started_stops_them_all(start):
    supervisor = start(_supervise_with_a_signal_at_the_first_fork)
    assert supervisor.result() == 0


def _supervise_beside_many_files(parent):
    with many_files():
        return _supervise_with_a_signal_at_the_first_fork(parent)


def test_a_supervisor_with_many_open_files_waits_for_its_children(start):
    supervisor = start(_supervise_beside_many_files)
    assert supervisor.result() == 0


def _supervise_without_a_reader(parent):
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 2)
    return _supervise_with_a_signal_at_the_first_fork(parent)


def test_a_signal_stops_all_though_nobody_reads_what_is_said_about_it(start):
    supervisor = start(_supervise_without_a_reader)
    assert supervisor.result() == 0


def test_a_child_that_has_run_its_number_of_jobs_makes_room_for_another(place):
    for _ in range(12):
        enqueue("quick")
    command = place.runworker("--processes", "2", "--max-jobs", "3")
    place.wait(lambda: Job.objects.filter(state="completed").count() == 12, "all jobs complete")
    assert len({event.pid for event in place.events("began")}) >= 4
    assert "died" not in command.output
    assert command.stop() == 0


def _supervise_the_dying(parent, file, first_code=3):
    def die(number):
        with open(file, "a+") as starts:
            starts.seek(0)
            is_first = all(line.split()[0] != str(number) for line in starts)
            starts.write(f"{number} {time.monotonic()}\n")
        os._exit(first_code if is_first else 3)

    supervisor.SHORT_LIFE = PATIENCE  # a busy machine may need long to start a child
    parent.tell("ready")
    return Supervisor(2, die).run()


def starts_of_the_dying(start, file, *options):
    """Return when each of two children was started for the first three times."""
    supervisor = start(_supervise_the_dying, file, *options)
    supervisor.hear()
    lines = read(file, 6)
    os.kill(supervisor.process.pid, TERM)
    supervisor.result()
    return [[float(moment) for name, moment in lines if name == number][:3] for number in ("0", "1")]


def test_children_that_die_at_once_are_started_again_after_growing_pauses(start, tmp_path):
    for first, second, third in starts_of_the_dying(start, tmp_path / "starts"):
        assert second - first >= 1
        assert third - second >= 2


def test_a_child_that_dies_at_once_after_one_that_ended_well_is_followed_after_a_pause(start, tmp_path):
    for _, second, third in starts_of_the_dying(start, tmp_path / "starts", 0):
        assert third - second >= 1
