from django.db import models
from wagtail.models import Page
from wagtail.search import index


class Article(Page):
    """A page of the magazine."""

    body = models.TextField()

    search_fields = [*Page.search_fields, index.SearchField("body")]
