from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("welcome/<int:user_id>/", views.welcome, name="welcome"),
    path("invoice/<int:order_id>/", views.invoice, name="invoice"),
    path("thumbnail/<int:picture_id>/", views.thumbnail, name="thumbnail"),
    path("report/", views.report, name="report"),
]
