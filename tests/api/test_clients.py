"""The OJS clients that others wrote: what each sends, and what it reads from the answer (docs: HTTP)."""

import pytest
from django.test import Client
from rest_framework.authtoken.models import Token

# Headers


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", "1.1", "1.12.3", "1.0.0-rc.1", "1.1-beta"])
def test_every_version_of_our_major_is_served_by_ours(ojs, version):
    answer = ojs.get("/ojs/v1/health", headers={"OJS-Version": version})
    assert (answer.status_code, answer["OJS-Version"]) == (200, "1.0")


@pytest.mark.parametrize(
    "version", ["2", "2.0", "0.9", "10.0", "v1", "", "1.", "1.0.0.0", "1.x", "1.0-", "1.0, 2.0", "1\n"]
)
def test_other_versions_are_refused_with_the_one_that_is_served(ojs, refused, version):
    error = refused(ojs.get("/ojs/v1/health", headers={"OJS-Version": version}), 422, "unsupported")
    assert error["details"] == {"field": "OJS-Version", "supported": ["1.0"]}


@pytest.mark.parametrize("word", ["Token", "Bearer", "bearer", "TOKEN"])
def test_a_token_comes_under_either_word(staff, word):
    key = Token.objects.create(user=staff).key
    assert Client(headers={"Authorization": f"{word} {key}"}).get("/ojs/v1/health").status_code == 200


@pytest.mark.parametrize("credentials", ["Bearer", "Bearer x", "Bearer a b", "Basic x", "Bearer \xff"])
def test_a_wrong_bearer_is_refused(db, refused, credentials):
    answer = Client(headers={"Authorization": credentials}).get("/ojs/v1/health")
    refused(answer, 401, "x_unauthenticated")
    assert answer["WWW-Authenticate"] == ("Token" if credentials == "Basic x" else "Bearer")


OJS, JSON = "application/openjobspec+json", "application/json"


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (JSON, JSON),
        (f"{JSON}, text/plain, */*", JSON),
        (f"{OJS};q=0.5, {JSON}", JSON),
        (OJS, OJS),
        ("*/*", OJS),
        ("application/*", OJS),
        (f"{JSON}, {OJS}", JSON),
        (f"{OJS}, {JSON}", OJS),
        (f"{JSON};q=0.5, */*", OJS),
        ("text/html", OJS),
        ("", OJS),
        (f"{JSON};q=0", OJS),
        ("x" * 20_000 + "; q=1", OJS),
        (";;;,=,\xff", OJS),
    ],
)
def test_the_answer_has_the_media_type_that_the_client_prefers(staff, accept, media_type):
    client = Client(headers={"Accept": accept, "Authorization": f"Token {Token.objects.create(user=staff).key}"})
    for path, status in (("/ojs/v1/health", 200), ("/ojs/v1/jobs/nothing", 404), ("/ojs/v1/nothing", 404)):
        answer = client.get(path)
        assert (answer.status_code, answer["Content-Type"]) == (status, media_type)
        assert answer.json()
