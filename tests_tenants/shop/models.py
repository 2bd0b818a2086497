from django.db import models


class Done(models.Model):
    """One row for each run of a handler, in the schema where it ran; ``seen`` is what the handler was told."""

    number = models.IntegerField()
    seen = models.CharField(max_length=100)

    def __str__(self):
        return f"{self.number} {self.seen}"
