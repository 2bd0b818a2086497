"""Keep finished jobs in a table of your own: see ``docs/retention.md``."""

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models


class ArchivedJob(models.Model):
    id = models.UUIDField(primary_key=True)
    finished_at = models.DateTimeField(db_index=True)
    data = models.JSONField(encoder=DjangoJSONEncoder)

    class Meta:
        app_label = "shop"

    def __str__(self):
        return str(self.id)
