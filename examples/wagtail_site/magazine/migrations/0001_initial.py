import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

PAGE = {
    "auto_created": True,
    "on_delete": django.db.models.deletion.CASCADE,
    "parent_link": True,
    "primary_key": True,
    "serialize": False,
    "to": settings.WAGTAIL_PAGE_MODEL,
}


class Migration(migrations.Migration):
    initial = True

    dependencies = [("wagtailcore", "0098_apitoken")]

    operations = [
        migrations.CreateModel(
            name="Article",
            fields=[("page_ptr", models.OneToOneField(**PAGE)), ("body", models.TextField())],
            options={"abstract": False},
            bases=("wagtailcore.page",),
        ),
    ]
