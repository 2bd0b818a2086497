"""What all commands have in common."""

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connection

from django_ojs_unique.models import Job, Queue

COMMANDS = [("runworker", "--drain"), ("ojs_worker", "--drain"), ("prunejobs",), ("jobs", "queues"), ("jobs", "verify")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Job, Queue])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_without_the_migration_gets_one_clear_line(command, model):
    table = model._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(model, table, f"{table}_away")
    try:
        with pytest.raises(CommandError) as error:
            call_command(*command)
        assert str(error.value) == (
            f"The table {table} does not exist in database 'default': run `manage.py migrate --database default`."
        )
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(model, f"{table}_away", table)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_code_that_is_newer_than_the_schema_gets_one_line_that_names_the_migration(command, newer_code):
    with pytest.raises(CommandError) as error:
        call_command(*command)
    assert error.value.returncode == 1
    assert str(error.value) == newer_code


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_database_is_refused(command):
    with pytest.raises(CommandError, match="'nowhere'"):
        call_command(*command, "--database", "nowhere")


@pytest.mark.slow
@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_wrong_settings_stop_it(command, settings):
    settings.OJS_UNIQUE = {"RETENTOIN": {}}
    with pytest.raises(SystemCheckError, match="RETENTOIN"):
        call_command(*command, skip_checks=False)
