import pytest
from django.db import connection, connections
from django.test.utils import setup_databases, teardown_databases
from django_tenants.utils import get_tenant_model, tenant_context

from django_ojs_unique.models import Job
from tests_tenants.shop.models import Done


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment, django_db_blocker):
    """Make the test database even if no test has the mark of pytest-django, which then makes none."""
    with django_db_blocker.unblock():
        made = setup_databases(verbosity=0, interactive=False)
        yield
        teardown_databases(made, verbosity=0)


@pytest.fixture(scope="session")
def tenants(django_db_setup, django_db_blocker):
    """Two tenants, made once, and each with its schema."""
    with django_db_blocker.unblock():
        made = []
        for name in ("a", "b"):
            tenant = get_tenant_model()(schema_name=name, name=name)
            tenant.save(verbosity=0)
            tenant.domains.create(domain=f"{name}.testserver", is_primary=True)
            made.append(tenant)
        yield made


@pytest.fixture(autouse=True)
def clean(tenants, django_db_blocker):
    """Real commits, as the threads of a worker must see them; each test begins with empty tables."""
    with django_db_blocker.unblock():
        for tenant in tenants:
            with tenant_context(tenant):
                Done.objects.all().delete()
                Job.objects.all().delete()
        connection.set_schema_to_public()
        yield
        connection.set_schema_to_public()
        connections.close_all()


@pytest.fixture
def done(tenants):
    def done(tenant):
        with tenant_context(tenant):
            return sorted(Done.objects.values_list("number", "seen"))

    return done
