"""Plain tasks of Django, as an app writes them that knows of no backend."""

from django.core.mail import send_mail
from django.tasks import task


@task(queue_name="mail")
def tell_readers(page_id):
    from .models import Article

    article = Article.objects.get(pk=page_id)
    send_mail(f"Read {article.slug}", article.body, "magazine@example.com", ["readers@example.com"])
