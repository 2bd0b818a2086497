"""What strangers wrote cannot pass for a line of the log (docs: security)."""

import ast
import logging
from pathlib import Path

import pytest

import django_ojs_unique
from django_ojs_unique import job
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.text import LOGGERS
from django_ojs_unique.testing import run_jobs
from tests.support.retries import IN_AN_HOUR

FORGED = "x\n2026-01-01 ERROR forged\r\x1b[2K\x85\u2028\u202e\x00"
UNSAFE = ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066"]


def lines(caplog):
    return caplog.text.splitlines()


@pytest.mark.slow
def test_each_logger_of_the_package_escapes():
    used = {
        node.args[0].value
        for file in Path(django_ojs_unique.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger"
        if isinstance(node.args[0], ast.Constant)
    }
    assert used == set(LOGGERS)


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.parametrize("said", [FORGED, ValueError(FORGED), [FORGED]], ids=["text", "error", "list"])
def test_a_text_of_a_stranger_stays_on_its_line(caplog, name, said):
    logging.getLogger(name).error("worker %s, %d", said, 5)
    (line,) = lines(caplog)
    assert "forged" in line
    assert line.endswith(", 5")
    assert line.isprintable()
    assert caplog.records[0].msg == "worker %s, %d"


def test_the_message_of_a_log_record_by_name_is_escaped_too(caplog):
    logging.getLogger("django_ojs_unique").warning("%(who)s", {"who": FORGED})
    assert len(lines(caplog)) == 1


def test_values_that_are_no_text_stay_what_they_are(caplog):
    logging.getLogger("django_ojs_unique").warning("%s %s %.1f", "plain é", None, 1.5)
    assert caplog.records[0].args == ("plain é", None, 1.5)


@pytest.mark.django_db
def test_the_error_of_a_handler_cannot_forge_a_line(caplog, handlers):
    @job("t", retry=IN_AN_HOUR)
    def fail():
        raise ValueError(FORGED)

    Job.objects.enqueue("t")
    run_jobs(raise_errors=False)
    (record,) = [record for record in caplog.records if record.exc_info]
    first, *others = caplog.handler.format(record).split("\n")
    assert "failed: x\\n2026-01-01" in first
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_an_error_that_cannot_be_printed_does_not_reach_whoever_logs_it(monkeypatch):
    class Strange(Exception):
        def __str__(self):
            raise RuntimeError

    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("django_ojs_unique").warning("%s", Strange())


@pytest.mark.django_db
@pytest.mark.parametrize("character", UNSAFE)
def test_names_and_keys_have_no_characters_that_cannot_be_printed(character):
    text = f"a{character}b"
    for field, given in {
        "key": {"key": text},
        "tags[0]": {"tags": [text]},
        "queue": {"queue": text},
        "type": {"type": text},
    }.items():
        with pytest.raises(InvalidRequest) as caught:
            Job.objects.enqueue(**{"type": "t", **given})
        assert caught.value.details["field"] == field
        assert caught.value.message.isprintable()
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_names_may_be_written_in_every_script():
    text = "Größe 大 😀 👩‍👩‍👧 ‏שלום نـ‌ه"
    job = Job.objects.enqueue("t", key=text, tags=[text]).job
    job.refresh_from_db()
    assert (job.key, job.tags) == (text, [text])
