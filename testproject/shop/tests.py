"""The shop's own tests: each button's outcome, and each job's handler."""

import tempfile
import threading
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from random import Random
from typing import Any
from unittest import mock
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.contrib.messages import get_messages
from django.core import mail
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import JobState
from django_ojs_unique.integrity import verify
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue
from django_ojs_unique.ojs.states import INCOMPLETE, TERMINAL
from django_ojs_unique.testing import run_jobs, travel

from . import demo, indexing, serve
from .history import write_history
from .jobs import (
    capture_payment,
    deliver,
    export_catalogue,
    index_source,
    print_label,
    render_invoice,
    resize_picture,
    send_welcome,
    write_report,
)
from .models import DailyReport, Execution, IndexedFile, Order, Picture
from .traffic import happen, traffic


class ShopTestCase(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        serve.add_samples()
        cls.user = get_user_model().objects.get(username="ada")
        cls.order = Order.objects.get(customer=cls.user)
        cls.picture = Picture.objects.get(title="Meadow")

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        settings = override_settings(MEDIA_ROOT=folder.name, SHOP_SECONDS_PER_SIZE=0, SHOP_SECONDS_PER_PAGE=0)
        settings.enable()
        self.addCleanup(settings.disable)


class TheButtons(ShopTestCase):
    def press(self, name: str, *args: int) -> str:
        """Press a button and return what the page says."""
        response = self.client.post(reverse(f"shop:{name}", args=args))
        self.assertRedirects(response, reverse("shop:home"), fetch_redirect_response=False)
        (message,) = get_messages(response.wsgi_request)
        self.assertContains(self.client.get(reverse("shop:home")), message.message)
        return message.message

    def test_a_second_welcome_mail_is_answered_with_the_first(self) -> None:
        created = self.press("welcome", self.user.pk)
        job = Job.objects.get()
        assert created == f"Created: email.send_welcome is job {job.pk}, and it is available."
        again = self.press("welcome", self.user.pk)
        assert again == f"Deduplicated: email.send_welcome is job {job.pk} already, and it is available."

    def test_a_welcome_mail_counts_for_a_week_though_it_was_sent(self) -> None:
        self.press("welcome", self.user.pk)
        now = timezone.now()
        Job._base_manager.update(state=JobState.COMPLETED, finished_at=now, created_at=now - timedelta(days=6))
        assert "and it is completed." in self.press("welcome", self.user.pk)
        Job.objects.update(created_at=now - timedelta(days=7))
        assert "Created" in self.press("welcome", self.user.pk)

    def test_a_second_invoice_is_refused_and_the_first_is_named(self) -> None:
        self.press("invoice", self.order.pk)
        job = Job.objects.get()
        refused = self.press("invoice", self.order.pk)
        assert refused.startswith("Refused: "), refused
        assert refused.endswith(f"Job {job.pk} is available."), refused

    def test_a_newer_thumbnail_replaces_the_one_that_waits(self) -> None:
        self.press("thumbnail", self.picture.pk)
        first = Job.objects.get()
        message = self.press("thumbnail", self.picture.pk)
        second = Job.objects.exclude(pk=first.pk).get()
        assert message == f"Replaced: image.resize is job {second.pk} now; {first.pk} was cancelled."
        first.refresh_from_db()
        assert (first.state, first.replaced_by_id) == (JobState.CANCELLED, second.pk)
        assert first.args["sky"] != second.args["sky"]

    def test_the_nightly_report_is_scheduled_once(self) -> None:
        assert "and it is scheduled." in self.press("report")
        assert "Deduplicated" in self.press("report")
        job = Job.objects.get()
        assert timezone.localtime(job.scheduled_at).hour == 2
        assert job.scheduled_at > timezone.now()

    def test_different_users_orders_and_pictures_do_not_meet(self) -> None:
        other = get_user_model().objects.get(username="grace")
        self.press("welcome", self.user.pk)
        assert "Created" in self.press("welcome", other.pk)
        assert not SuppressedEnqueue.objects.exists()

    def test_the_page_shows_what_the_next_press_would_do(self) -> None:
        self.assertContains(self.client.get(reverse("shop:home")), "<strong>create</strong>")
        self.press("invoice", self.order.pk)
        self.assertContains(self.client.get(reverse("shop:home")), "<strong>reject</strong>", count=1)

    def test_a_button_needs_a_post_and_something_that_exists(self) -> None:
        assert self.client.get(reverse("shop:report")).status_code == 405
        assert self.client.post(reverse("shop:invoice", args=[10**6])).status_code == 404
        assert not Job.objects.exists()

    def test_the_demo_login_opens_the_admin(self) -> None:
        assert self.client.login(username=serve.LOGIN, password=serve.PASSWORD)
        self.assertContains(self.client.get(reverse("admin:shop_order_changelist")), "Teapot")
        self.press("report")
        self.assertContains(self.client.get(reverse("admin:django_ojs_unique_job_changelist")), "report.daily")

    def test_the_viewer_may_look_and_change_nothing(self) -> None:
        assert self.client.login(username=serve.VIEWER, password=serve.VIEWER)
        self.assertContains(self.client.get(reverse("admin:shop_order_changelist")), "Teapot")
        viewer = get_user_model().objects.get(username=serve.VIEWER)
        assert all(".view_" in permission for permission in viewer.get_all_permissions())


class TheHandlers(ShopTestCase):
    def context(self, *, cancelled: bool = False) -> Any:
        return mock.Mock(job_id=uuid4(), cancelled=cancelled)

    def test_a_welcome_mail_is_sent_in_the_users_language(self) -> None:
        send_welcome(self.user.pk, locale="de")
        assert (mail.outbox[0].subject, mail.outbox[0].to) == ("Willkommen", ["ada@example.com"])

    def test_an_invoice_is_one_file_however_often_it_runs(self) -> None:
        assert render_invoice(self.order.pk) == render_invoice(self.order.pk)
        self.order.refresh_from_db()
        assert "Teapot: 24.90 EUR" in default_storage.open(self.order.invoice).read().decode()

    def test_a_picture_is_drawn_in_each_size(self) -> None:
        resize_picture(self.context(), picture_id=self.picture.pk, sky="#ffafcc")
        assert len(default_storage.listdir("thumbnails")[1]) == 3
        self.picture.refresh_from_db()
        assert 'fill="#ffafcc"' in default_storage.open(self.picture.thumbnail).read().decode()

    def test_a_replaced_run_stops_and_changes_nothing(self) -> None:
        assert resize_picture(self.context(cancelled=True), picture_id=self.picture.pk, sky="#ffafcc") == ""
        self.picture.refresh_from_db()
        assert self.picture.thumbnail == ""

    def test_the_report_sums_up_the_orders(self) -> None:
        write_report()
        assert str(DailyReport.objects.get()) == "3 orders, 82.40"

    def test_the_bank_answers_the_third_time_if_not_the_first(self) -> None:
        assert capture_payment(mock.Mock(attempt=1), payment=8) == "captured 8"
        with self.assertRaisesMessage(ConnectionError, "The bank"):
            capture_payment(mock.Mock(attempt=2), payment=7)
        assert capture_payment(mock.Mock(attempt=3), payment=7) == "captured 7"

    def test_no_label_is_printed_where_no_carrier_goes(self) -> None:
        assert print_label(parcel=5, country="PT") == "PT-00005"
        with self.assertRaisesMessage(LookupError, "Atlantis"):
            print_label(parcel=5, country="Atlantis")

    def test_the_export_says_how_far_it_is_and_stops_when_it_is_cancelled(self) -> None:
        context = self.context()
        assert export_catalogue(context, pages=2) == "2 pages"
        context.progress.assert_called_with(0.5, "page 2 of 2")
        assert export_catalogue(self.context(cancelled=True), pages=2) == "cancelled"

    def test_a_file_is_indexed_and_each_run_is_counted(self) -> None:
        for _ in range(2):
            index_source(self.context(), path="this.py", origin="test")
        assert Execution.objects.filter(path="this.py").count() == 2
        assert IndexedFile.objects.get().functions == 0

    def test_definitions_are_found_on_lines_of_any_depth(self) -> None:
        source = (
            b"class A:\n  def f(self):\n    try:\n      pass\n    except E:\n      async def g(): ...\nif 1:\n  pass\n"
        )
        source += b"else:\n  def h(): ...\nmatch 1:\n  case 1:\n    def i(): ...\n"
        assert indexing._definitions(source) == (4, 1)
        assert indexing._definitions(b"def (:") == (0, 0)
        assert indexing._definitions(b"\x00") == (0, 0)


class TheOrders(TestCase):
    def test_it_is_paid_then_packed_and_invoiced_then_confirmed(self) -> None:
        workflow = deliver(8, "PT").enqueue()
        run_jobs()
        workflow.refresh_from_db()
        assert workflow.state == "completed"
        assert workflow.result == "order 8: captured 8, parcel PT-00008, invoice INV-00008"

    def test_without_a_carrier_nobody_is_told(self) -> None:
        workflow = deliver(8, "Atlantis").enqueue()
        run_jobs(raise_errors=False)
        with travel("PT1H"):
            run_jobs(raise_errors=False)
        workflow.refresh_from_db()
        assert workflow.state == "failed"
        assert not Job.objects.filter(type="order.confirm").exists()


class Serving(TestCase):
    def test_samples_are_added_once(self) -> None:
        serve.add_samples()
        serve.add_samples()
        assert (Order.objects.count(), Picture.objects.count()) == (3, 3)

    def test_the_demo_token_opens_the_api(self) -> None:
        serve.add_samples()
        job = {"type": "letter.count", "args": [{"text": "hello"}], "options": {"queue": "letters"}}
        headers = {"Authorization": f"Token {serve.TOKEN}"}
        url = reverse("ojs:jobs")
        assert self.client.post(url, job, content_type="application/json").status_code == 401
        assert self.client.post(url, job, content_type="application/json", headers=headers).status_code == 201
        assert Job.objects.get().queue == "letters"

    @override_settings(DEBUG=False)
    def test_no_demo_login_outside_debug(self) -> None:
        with self.assertRaisesMessage(serve.CannotServe, "DEBUG"):
            serve.prepare(8000)
        assert not get_user_model().objects.exists()


class TheHistory(TestCase):
    def test_each_page_of_the_admin_has_something_to_show(self) -> None:
        write_history()
        now = timezone.now()
        finished = Job.objects.filter(state__in=TERMINAL)
        assert finished.count() > 500
        assert not finished.filter(created_at__lt=now - timedelta(days=1)).exists()
        assert not finished.filter(finished_at__gt=now).exists()
        assert finished.filter(dead_letter=True).exists()
        assert set(SuppressedEnqueue.objects.values_list("outcome", flat=True)) == {
            "rejected",
            "deduplicated",
            "replaced",
        }
        assert Queue.objects.get().paused_at
        assert Job.objects.filter(state="available", type="newsletter.send", args__reader=7).count() == 2
        assert Job.objects.filter(type="newsletter.mail").exists()

    def test_ids_are_in_the_order_of_time(self) -> None:
        write_history()
        created = Job.objects.filter(state__in=TERMINAL).exclude(type="newsletter.send").order_by("pk")
        moments = [int(moment.timestamp() * 1000) for moment in created.values_list("created_at", flat=True)]
        assert moments == sorted(moments)

    def test_it_agrees_with_what_enqueue_would_have_written(self) -> None:
        write_history()
        assert not verify(Job.objects.all())

    def test_it_is_written_once_and_never_over_anything(self) -> None:
        Job.objects.enqueue("stock.sync")
        write_history()
        assert Job.objects.count() == 1


class TheTraffic(TestCase):
    def test_it_enqueues_what_is_met_by_each_strategy(self) -> None:
        chance = Random(7)
        for moment in range(40):
            happen(moment, chance)
        assert set(SuppressedEnqueue.objects.values_list("outcome", flat=True)) == {
            "rejected",
            "deduplicated",
            "replaced",
        }
        assert Job.objects.filter(state="scheduled").exists()

    def test_what_waits_is_bounded_by_the_keys_there_are(self) -> None:
        chance = Random(7)
        with mock.patch("shop.traffic.pay"), mock.patch("shop.traffic.ship"), mock.patch("shop.traffic.order"):
            for moment in range(600):
                happen(moment, chance)
        readers, products, baskets, exports = 120, 40, 12, 1
        assert Job.objects.filter(state__in=INCOMPLETE).count() <= readers + products + baskets + exports


class TheTrafficInTheBackground(TransactionTestCase):
    def test_it_ends_with_the_block_and_bears_a_database_that_fails(self) -> None:
        happened = threading.Event()
        failures = iter([OperationalError("database is locked")])

        def happen(*_: Any) -> None:
            if failure := next(failures, None):
                raise failure
            happened.set()

        with (
            mock.patch("shop.traffic.happen", happen),
            mock.patch("shop.traffic.SECONDS", 0.01),
            self.assertLogs("shop.traffic", "WARNING"),
            traffic(),
        ):
            assert happened.wait(30)
        assert "traffic" not in [thread.name for thread in threading.enumerate()]


class TheDemo(TestCase):
    kept = demo.Report(
        files=1,
        files_there_are=2,
        calls=3,
        admitted=1,
        suppressed=2,
        executed=1,
        executed_twice=0,
        lost=0,
        seconds=0.1,
        lines=1,
        functions=1,
        classes=1,
    )

    def test_a_kept_promise_ends_with_what_to_type_next(self) -> None:
        with mock.patch.object(demo, "run", return_value=self.kept):
            call_command("demo", stdout=(output := StringIO()))
        assert "make serve" in output.getvalue()

    def test_a_broken_promise_is_a_failure(self) -> None:
        for broken in [{"executed_twice": 1}, {"lost": 1}, {"admitted": 2}, {"executed": 0}]:
            report = replace(self.kept, **broken)
            with (
                self.subTest(**broken),
                mock.patch.object(demo, "run", return_value=report),
                self.assertRaisesMessage(CommandError, "The promise was broken"),
            ):
                call_command("demo", stdout=StringIO())

    def test_an_accident_is_a_failure_with_its_reason(self) -> None:
        with (
            mock.patch.object(demo, "run", side_effect=demo.DemoFailed("The worker ended early.")),
            self.assertRaisesMessage(CommandError, "The demo failed: The worker ended early."),
        ):
            call_command("demo", stdout=StringIO())
