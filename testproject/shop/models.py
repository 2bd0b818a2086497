"""What the shop sells, and what its jobs store."""

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import models


class Order(models.Model):
    """An order; it gets one invoice."""

    customer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="orders")
    item = models.CharField(max_length=100)
    total = models.DecimalField(max_digits=8, decimal_places=2)
    placed_at = models.DateTimeField(auto_now_add=True)
    invoice = models.CharField(max_length=200, blank=True, editable=False, help_text="The file of the invoice.")

    def __str__(self) -> str:
        return f"Order {self.pk}: {self.item}"

    @property
    def invoice_url(self) -> str:
        return default_storage.url(self.invoice) if self.invoice else ""


class Picture(models.Model):
    """A product picture: two colours, drawn as SVG, so that no upload is needed."""

    title = models.CharField(max_length=100)
    sky = models.CharField(max_length=20, default="#8ecae6")
    ground = models.CharField(max_length=20, default="#588157")
    thumbnail = models.CharField(max_length=200, blank=True, editable=False, help_text="The file of the thumbnail.")

    def __str__(self) -> str:
        return self.title

    @property
    def thumbnail_url(self) -> str:
        return default_storage.url(self.thumbnail) if self.thumbnail else ""


class DailyReport(models.Model):
    """One nightly report."""

    created_at = models.DateTimeField(auto_now_add=True)
    orders = models.PositiveIntegerField()
    revenue = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.orders} orders, {self.revenue}"


class IndexedFile(models.Model):
    """What `source.index` counted in one source file."""

    path = models.CharField(max_length=500, unique=True)
    lines = models.PositiveIntegerField()
    functions = models.PositiveIntegerField()
    classes = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.path


class Execution(models.Model):
    """One run of `source.index`, stored before the work; the demo counts by these rows what ran twice."""

    path = models.CharField(max_length=500)
    job_id = models.UUIDField()
    started_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.path
