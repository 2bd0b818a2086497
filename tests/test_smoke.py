import pytest
from django_ojs_unique.models import Job
@pytest.mark.django_db
def test_x():
    assert Job.objects.enqueue("t").created
