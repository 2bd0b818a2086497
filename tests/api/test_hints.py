"""The hints of errors that a client meets first: a wrong method, a slash too many."""

import pytest

pytestmark = pytest.mark.django_db


def test_a_wrong_method_is_told_which_are_allowed(admin_client):
    answer = admin_client.get("/ojs/v1/jobs/batch")
    assert answer.status_code == 405
    assert "POST" in answer["Allow"]
    assert "`Allow`" in answer.json()["error"]["hint"]


@pytest.mark.parametrize("path", ["/ojs/v1/queues/", "/ojs/v1/health//"])
def test_a_slash_at_the_end_is_named(admin_client, path):
    error = admin_client.get(path).json()["error"]
    assert f'Write "{path.rstrip("/")}", without the slash at the end.' in error["message"]
    assert "pruned" not in error["hint"]


def test_a_path_that_exists_in_no_form_suggests_none(admin_client):
    assert "Write" not in admin_client.get("/ojs/v1/nothing/").json()["error"]["message"]
