"""The shop's jobs. Each declares when two of them are duplicates, and what to do then."""

import logging
import time
from decimal import Decimal
from pathlib import PurePath

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.mail import send_mail
from django.db.models import Count, Sum
from django.utils.html import escape

from django_ojs_unique import JobContext, JobState, RetryPolicy, UniquePolicy, chain, group, job
from django_ojs_unique.workflows.compose import Composition

from . import indexing
from .models import DailyReport, Order, Picture

logger = logging.getLogger(__name__)

UNLESS_IT_FAILED = [state for state in JobState if state not in (JobState.CANCELLED, JobState.DISCARDED)]
"""A completed job counts as a duplicate, too; a cancelled or discarded one does not."""

SIZES = (64, 128, 256)


@job(
    "email.send_welcome",
    queue="emails",
    unique=UniquePolicy(
        keys=["type", "args"], args_keys=["user_id"], period="P7D", states=UNLESS_IT_FAILED, on_conflict="ignore"
    ),
    retry=RetryPolicy(max_attempts=5),
    timeout="PT30S",
)
def send_welcome(user_id: int, locale: str = "en") -> None:
    """Send one welcome mail per user and week, in whichever language was asked for first."""
    user = get_user_model().objects.get(pk=user_id)
    subject = {"de": "Willkommen", "fr": "Bienvenue"}.get(locale, "Welcome")
    send_mail(subject, f"{subject}, {user.get_username()}!", None, [user.email])
    logger.info("Sent a welcome mail to %s", user.get_username())


@job(
    "invoice.render",
    queue="invoices",
    unique=UniquePolicy(keys=["type", "args"], args_keys=["order_id"], states=UNLESS_IT_FAILED, on_conflict="reject"),
)
def render_invoice(order_id: int) -> str:
    """Write the one invoice of an order; return the file's name."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    text = f"Invoice {order.pk:06}\nTo: {order.customer.get_username()}\n\n{order.item}: {order.total} EUR\n"
    order.invoice = _store(f"invoices/{order.pk:06}.txt", text)
    order.save(update_fields=["invoice"])
    logger.info("Wrote %s", order.invoice)
    return order.invoice


@job(
    "image.resize",
    queue="thumbnails",
    unique=UniquePolicy(keys=["type", "queue", "args"], args_keys=["picture_id"], on_conflict="replace"),
    takes_context=True,
)
def resize_picture(context: JobContext, picture_id: int, sky: str) -> str:
    """Draw a picture in each size with the newest colour; stop as soon as a newer job replaced this one."""
    picture = Picture.objects.get(pk=picture_id)
    for size in SIZES:
        if context.cancelled:
            logger.info("Stopped drawing %s: a newer job took over", picture)
            return ""
        time.sleep(settings.SHOP_SECONDS_PER_SIZE)
        picture.thumbnail = _store(
            f"thumbnails/{picture.pk}-{size}-{sky.lstrip('#')}.svg", _drawing(picture, sky, size)
        )
    picture.sky = sky
    picture.save(update_fields=["sky", "thumbnail"])
    logger.info("Drew %s", picture.thumbnail)
    return picture.thumbnail


@job("report.daily", queue="reports", unique=UniquePolicy(keys=["type"], on_conflict="ignore"))
def write_report() -> None:
    """Write the total of all orders into one row."""
    totals = Order.objects.aggregate(orders=Count("pk"), revenue=Sum("total", default=Decimal(0)))
    report = DailyReport.objects.create(**totals)
    logger.info("Wrote the report: %s", report)


@job(
    "source.index",
    queue="index",
    unique=UniquePolicy(keys=["type", "args"], args_keys=["path"], states=UNLESS_IT_FAILED, on_conflict="ignore"),
    takes_context=True,
)
def index_source(context: JobContext, path: str, origin: str) -> None:
    """Index one file of Python's standard library (`make demo`); ``origin``: the producer that enqueued it first."""
    indexing.index(PurePath(path), job_id=context.job_id)


@job(
    "payment.capture",
    queue="payments",
    unique=UniquePolicy(
        keys=["type", "args"], args_keys=["payment"], period="PT10M", states=UNLESS_IT_FAILED, on_conflict="reject"
    ),
    retry=RetryPolicy(max_attempts=4, initial_interval="PT2S"),
    takes_context=True,
)
def capture_payment(context: JobContext, payment: int) -> str:
    """Take the money once, however often the provider's webhook is called; sometimes the bank does not answer."""
    time.sleep(0.2)
    if payment % 7 == 0 and context.attempt < 3:
        raise ConnectionError("The bank does not answer.")
    return f"captured {payment}"


@job(
    "parcel.label",
    queue="parcels",
    unique=UniquePolicy(keys=["type", "args"], args_keys=["parcel"], on_conflict="ignore"),
    retry=RetryPolicy(max_attempts=2, initial_interval="PT3S", on_exhaustion="dead_letter"),
)
def print_label(parcel: int, country: str) -> str:
    """Print a parcel's label; for a country without a carrier no retry helps, and the job becomes a dead letter."""
    if country == "Atlantis":
        raise LookupError(f"No carrier goes to {country}.")
    return f"{country}-{parcel:05}"


@job("order.invoice", queue="invoices")
def invoice_order(order: int) -> str:
    """Number the invoice of an order."""
    return f"INV-{order:05}"


@job("order.confirm", queue="emails", takes_context=True)
def confirm_order(context: JobContext, order: int) -> str:
    """Tell the customer what the steps before have done."""
    payment, (label, invoice) = context.parent_results
    return f"order {order}: {payment}, parcel {label}, invoice {invoice}"


def deliver(order: int, country: str) -> Composition:
    """Return the workflow of an order: pay, then pack and invoice side by side, then tell the customer."""
    return chain(
        capture_payment.item(payment=order),
        group([print_label.item(parcel=order, country=country), invoice_order.item(order=order)], name="side by side"),
        confirm_order.item(order=order),
        name=f"order {order}",
    )


@job(
    "search.update",
    queue="search",
    unique=UniquePolicy(keys=["type", "args"], args_keys=["product"], on_conflict="ignore"),
)
def update_search(product: int) -> None:
    """Update one product's search entry; a product that is saved twice needs one update."""
    time.sleep(0.3)


@job(
    "basket.remind",
    queue="emails",
    unique=UniquePolicy(keys=["type", "args"], args_keys=["basket"], on_conflict="replace"),
)
def remind(basket: int, items: int) -> str:
    """Remind a customer of a basket some time after its last change; each change delays the reminder."""
    return f"reminded of {items} items"


@job(
    "newsletter.send",
    queue="newsletters",
    unique=UniquePolicy(keys=["type", "args"], args_keys=["reader"], on_conflict="ignore"),
)
def send_newsletter(reader: int) -> None:
    """Send the newsletter to a reader. `make serve` pauses this queue, so that it has a backlog."""
    time.sleep(0.1)


@job("catalogue.export", queue="reports", unique=UniquePolicy(keys=["type"], on_conflict="ignore"), takes_context=True)
def export_catalogue(context: JobContext, pages: int) -> str:
    """Export the catalogue, a page a second, and report the progress."""
    for page in range(pages):
        if context.cancelled:
            return "cancelled"
        context.progress(page / pages, f"page {page + 1} of {pages}")
        time.sleep(settings.SHOP_SECONDS_PER_PAGE)
    return f"{pages} pages"


@job("stock.sync", queue="stock", unique=UniquePolicy(on_conflict="ignore"), cron="@every PT30S")
def sync_stock() -> str:
    """Ask the warehouse for its stock, twice a minute."""
    time.sleep(0.5)
    return "in step"


def _store(name: str, text: str) -> str:
    """Write a file, replacing an older one, so that running a job again does no harm."""
    default_storage.delete(name)
    return default_storage.save(name, ContentFile(text))


def _drawing(picture: Picture, sky: str, size: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3" width="{size}" height="{size * 3 // 4}">'
        f'<rect width="4" height="3" fill="{escape(sky)}"/><circle cx="3" cy="0.8" r="0.4" fill="#ffb703"/>'
        f'<path d="M0 3V2L1.3 1L2.4 2L3 1.6L4 2.2V3Z" fill="{escape(picture.ground)}"/></svg>'
    )
