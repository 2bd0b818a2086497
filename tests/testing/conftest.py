from typing import Any

import pytest

from django_ojs_unique.pytest_plugin import ojs_jobs  # noqa: F401 - a fixture, where the plugin is not installed


@pytest.fixture(
    params=[
        pytest.param("TestCase", marks=pytest.mark.django_db),
        pytest.param("TransactionTestCase", marks=pytest.mark.django_db(transaction=True)),
    ]
)
def database(request: Any) -> str:
    """Run a test inside a transaction, and outside."""
    return str(request.param)
