"""Simulated customers, payment provider and scheduler of the shop, which enqueue jobs all the time in `make serve`.

The keys come from small ranges, so the number of waiting jobs is bounded; retention bounds the finished ones.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from random import Random

from django.db import DatabaseError, connections
from django.utils import timezone

from django_ojs_unique import DuplicateJob

from .jobs import capture_payment, deliver, export_catalogue, print_label, remind, send_newsletter, update_search

logger = logging.getLogger(__name__)

LIVELY_MOMENTS = 900
"""After so many moments, probably nobody watches any more, and the traffic slows down."""
SECONDS, QUIET_SECONDS = 1.0, 10.0
EXPORT_EVERY = 20
PAGES = 90
COUNTRIES = ["DE", "FR", "PT", "SE"] * 4 + ["Atlantis"]


@contextmanager
def traffic() -> Iterator[None]:
    """Enqueue jobs in the background while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=_live, args=(stop,), name="traffic")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def happen(moment: int, chance: Random) -> None:
    """Let a few events happen. ``moment`` counts up, so that the values of new events differ from earlier ones."""
    if moment % EXPORT_EVERY == 0:
        export_catalogue.enqueue(pages=PAGES)
    for event in chance.choices([pay, save_product, ship, change_basket, subscribe, order], [4, 4, 2, 3, 1, 1], k=2):
        event(moment, chance)


def pay(moment: int, chance: Random) -> None:
    """Report a payment, as the provider does: often twice."""
    for _ in range(chance.choice([1, 2])):
        with suppress(DuplicateJob):
            capture_payment.enqueue(payment=moment % 1_000)


def save_product(moment: int, chance: Random) -> None:
    """Save a product twice, as an editor does with a double click; some products are edited all the time."""
    product = min(chance.randrange(40), chance.randrange(40))
    for _ in range(chance.choice([1, 2, 2])):
        update_search.enqueue(product=product)


def ship(moment: int, chance: Random) -> None:
    """Pack a parcel."""
    print_label.enqueue(parcel=moment % 1_000, country=chance.choice(COUNTRIES))


def change_basket(moment: int, chance: Random) -> None:
    """Change a basket, as a customer does: the reminder is delayed."""
    soon = timezone.now() + timedelta(seconds=45)
    remind.using(scheduled_at=soon).enqueue(basket=chance.randrange(12), items=chance.randint(1, 9))


def subscribe(moment: int, chance: Random) -> None:
    """Subscribe to the newsletter, as a reader does; its queue is paused."""
    send_newsletter.enqueue(reader=chance.randrange(120))


def order(moment: int, chance: Random) -> None:
    """Order something: a workflow."""
    with suppress(DuplicateJob):
        deliver(1_000 + moment % 1_000, chance.choice(COUNTRIES)).enqueue()


def _live(stop: threading.Event) -> None:
    chance, moment = Random(7), 0
    while not stop.wait(SECONDS if moment < LIVELY_MOMENTS else QUIET_SECONDS):
        try:
            happen(moment, chance)
        except DatabaseError as error:
            logger.warning("The customers cannot enqueue; trying again: %s", error)
            connections.close_all()
        moment += 1
    connections.close_all()
