"""One page, and one view per button: each enqueues a job and shows the outcome."""

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from django_ojs_unique import DuplicateJob
from django_ojs_unique.models import Job, SuppressedEnqueue

from .jobs import render_invoice, resize_picture, send_welcome, write_report
from .models import DailyReport, Order, Picture

BUTTONS = ["email.send_welcome", "invoice.render", "image.resize", "report.daily"]
"""The job types that this page shows; the jobs of `traffic` would hide them."""
SKIES = ["#8ecae6", "#ffafcc", "#cdb4db", "#ffd6a5"]


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Show the buttons, what each would do now, and the latest jobs."""
    orders = Order.objects.select_related("customer").order_by("pk")
    context = {
        "customers": [
            (user, Job.objects.explain("email.send_welcome", {"user_id": user.pk}))
            for user in get_user_model().objects.filter(orders__isnull=False).distinct().order_by("pk")
        ],
        "orders": [(order, Job.objects.explain("invoice.render", {"order_id": order.pk})) for order in orders],
        "pictures": [
            (picture, Job.objects.explain("image.resize", {"picture_id": picture.pk}))
            for picture in Picture.objects.order_by("pk")
        ],
        "report": Job.objects.explain("report.daily"),
        "last_report": DailyReport.objects.first(),
        "jobs": Job.objects.filter(type__in=BUTTONS).order_by("-created_at", "-pk")[:15],
        "suppressed": SuppressedEnqueue.objects.filter(type__in=BUTTONS).order_by("-pk")[:10],
    }
    return render(request, "shop/home.html", context)


@require_POST
def welcome(request: HttpRequest, user_id: int) -> HttpResponse:
    """Send a welcome mail: once per user and week."""
    user = get_object_or_404(get_user_model(), pk=user_id)
    return _tell(request, send_welcome.enqueue(user_id=user.pk))


@require_POST
def invoice(request: HttpRequest, order_id: int) -> HttpResponse:
    """Render an invoice: a second one is refused."""
    order = get_object_or_404(Order, pk=order_id)
    try:
        result = render_invoice.enqueue(order_id=order.pk)
    except DuplicateJob as duplicate:
        text = f"Refused: {duplicate.message}. Job {duplicate.existing_job_id} is {duplicate.existing_job_state}."
        messages.error(request, text)
        return redirect("shop:home")
    return _tell(request, result)


@require_POST
def thumbnail(request: HttpRequest, picture_id: int) -> HttpResponse:
    """Draw a picture with its next colour of the sky: the newest request wins."""
    picture = get_object_or_404(Picture, pk=picture_id)
    newest = Job.objects.filter(type="image.resize", args__picture_id=picture.pk).order_by("-created_at", "-pk").first()
    sky = newest.args["sky"] if newest else picture.sky
    following = SKIES[(SKIES.index(sky) + 1) % len(SKIES)] if sky in SKIES else SKIES[0]
    return _tell(request, resize_picture.enqueue(picture_id=picture.pk, sky=following))


@require_POST
def report(request: HttpRequest) -> HttpResponse:
    """Schedule the nightly report: there is never more than one."""
    return _tell(request, write_report.using(scheduled_at=_tonight(timezone.localtime())).enqueue())


def _tell(request: HttpRequest, result: Any) -> HttpResponse:
    """Show the outcome on the next page."""
    job = result.job
    if result.deduplicated:
        messages.info(request, f"Deduplicated: {job.type} is job {job.pk} already, and it is {job.state}.")
    elif result.replaced:
        old = ", ".join(str(replaced.pk) for replaced in result.replaced)
        messages.success(request, f"Replaced: {job.type} is job {job.pk} now; {old} was cancelled.")
    else:
        messages.success(request, f"Created: {job.type} is job {job.pk}, and it is {job.state}.")
    return redirect("shop:home")


def _tonight(now: datetime) -> datetime:
    """Return the next two o'clock in the morning."""
    tonight = now.replace(hour=2, minute=0, second=0, microsecond=0)
    return tonight if tonight > now else tonight + timedelta(days=1)
