"""Which Patroni the scenarios take; and that they can be imported, on a machine without any cluster."""

import pytest

from tests.ha import patroni
from tests.ha.__main__ import SCENARIOS
from tests.ha.servers import Missing


def test_each_scenario_is_there():
    from tests.ha import scenarios

    assert [name for name in SCENARIOS if not hasattr(scenarios, name)] == []


@pytest.mark.parametrize("version", ["2.1.4", "3.0", "3.0.2"])
def test_a_patroni_without_the_mend_is_named(version):
    with pytest.raises(Missing, match=rf"Patroni is {version} here, and must be 3\.0\.3 or newer"):
        patroni.check(version)


@pytest.mark.parametrize("version", ["3.0.3", "3.0.4", "3.1", "4.0.6"])
def test_a_patroni_with_the_mend_is_taken(version):
    patroni.check(version)
