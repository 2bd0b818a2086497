"""The saboteur outlives what its faults do to itself."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pytest
from django.db import connection

from . import logs
from .saboteur import FOR_EVER, Saboteur
from .servers import Server


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite has one lock for all writers")
def test_a_locked_database_keeps_the_saboteur_from_one_fault_only(monkeypatch, tmp_path):
    monkeypatch.setattr(logs, "FOLDER", tmp_path)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.01)
    saboteur = Saboteur(random.Random(1), [], Server({}), lease=4)
    saboteur._actions, saboteur._next = {saboteur.lock_database: 1}, 0
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        assert saboteur.turn() == ""
    assert saboteur.faults[0].ended < FOR_EVER
    saboteur._next = 0
    assert saboteur.turn().startswith("locked database")
    saboteur.stop_all()
