"""An index of your own on the table of jobs: see ``docs/upgrading.md``."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class AddIndexToJobs(AddIndexConcurrently):
    """Adds an index to a table of django_ojs_unique, and leaves the state of its models."""

    app = "django_ojs_unique"

    def state_forwards(self, app_label, state):
        pass

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        super().database_forwards(self.app, schema_editor, from_state, to_state)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        super().database_backwards(self.app, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    atomic = False  # which CONCURRENTLY needs
    dependencies = [("django_ojs_unique", "0001_initial")]
    operations = [
        AddIndexToJobs("job", models.Index(fields=["type", "-created_at"], name="shop_job_by_type")),
    ]
