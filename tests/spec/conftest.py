from datetime import UTC, datetime

import pytest
from django.utils import timezone

from django_ojs_unique import signals

SIGNALS = {
    "enqueued": signals.job_enqueued,
    "suppressed": signals.job_suppressed,
    "cancelled": signals.job_cancelled,
}


class Clock:
    """The application's clock, stopped; set it or move it on."""

    def __init__(self, now):
        self.now = now

    def advance(self, by):
        self.now += by


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock at noon of 12 February 2026, UTC."""
    clock = Clock(datetime(2026, 2, 12, 12, tzinfo=UTC))
    monkeypatch.setattr(timezone, "now", lambda: clock.now)
    return clock


@pytest.fixture
def received():
    """Collect the signals that are sent: pairs of a name and the arguments."""
    seen = []
    receivers = []
    for name, signal in SIGNALS.items():

        def receive(sender, signal=None, name=name, **arguments):
            seen.append((name, arguments))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield seen
    for signal, receive in receivers:
        signal.disconnect(receive)
