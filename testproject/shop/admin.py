from django.contrib import admin

from .models import DailyReport, IndexedFile, Order, Picture


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["id", "customer", "item", "total", "placed_at", "invoice"]
    list_select_related = ["customer"]


@admin.register(Picture)
class PictureAdmin(admin.ModelAdmin):
    list_display = ["title", "sky", "thumbnail"]


@admin.register(DailyReport)
class DailyReportAdmin(admin.ModelAdmin):
    list_display = ["created_at", "orders", "revenue"]


@admin.register(IndexedFile)
class IndexedFileAdmin(admin.ModelAdmin):
    list_display = ["path", "lines", "functions", "classes"]
    search_fields = ["path"]
