"""GET /ojs/manifest, GET /ojs/v1/health, GET /ojs/v1/errors/{code} (HTTP binding, sections 4 and 16)."""

import re
import socket

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client
from django.urls import resolve

from django_ojs_unique import __version__
from django_ojs_unique.api import health
from django_ojs_unique.api.views.status import Nowhere
from django_ojs_unique.api.wire.errors import CODES
from django_ojs_unique.db import capabilities
from django_ojs_unique.models import Job
from tests.support.processes import PATIENCE

from .routes import SOME_ID

ROUTES_OF = {
    "batch_enqueue": ["/ojs/v1/jobs/batch"],
    "cron_jobs": ["/ojs/v1/cron", "/ojs/v1/cron/nightly"],
    "dead_letter": [
        "/ojs/v1/dead-letter",
        f"/ojs/v1/dead-letter/{SOME_ID}",
        f"/ojs/v1/dead-letter/{SOME_ID}/retry",
    ],
    "delayed_jobs": ["/ojs/v1/jobs"],
    "job_ttl": ["/ojs/v1/jobs"],
    "pause_resume": ["/ojs/v1/queues/mail/pause", "/ojs/v1/queues/mail/resume"],
    "priority_queues": ["/ojs/v1/jobs"],
    "rate_limiting": ["/ojs/v1/workers/fetch"],
    "workflows": ["/ojs/v1/workflows", f"/ojs/v1/workflows/{SOME_ID}"],
    "explain": ["/ojs/v1/jobs/explain"],
    "bulk_enqueue": ["/ojs/v1/jobs/bulk"],
    "long_polling": ["/ojs/v1/workers/fetch"],
    "worker_control": ["/ojs/v1/workers", "/ojs/v1/workers/w/quiet", "/ojs/v1/workers/w/terminate"],
    "lease_tokens": [f"/ojs/v1/workers/{call}" for call in ("fetch", "ack", "nack", "heartbeat")],
    "job_limits": ["/ojs/v1/jobs", "/ojs/v1/workers/fetch"],
    "job_keys": ["/ojs/v1/jobs"],
    "progress": [f"/ojs/v1/jobs/{SOME_ID}/progress", "/ojs/v1/workers/progress"],
}


def manifest(ojs):
    answer = ojs.get("/ojs/manifest")
    assert answer.status_code == 200
    return answer.json()


def routed(path):
    return resolve(path).func.view_class is not Nowhere


def test_the_manifest_says_what_the_server_is(ojs):
    said = manifest(ojs)
    assert (said["specversion"], said["ojs_version"]) == ("1.0", "1.0")
    assert said["implementation"]["name"] == "django-ojs-unique"
    assert said["implementation"]["version"] == __version__
    assert said["protocols"] == ["http"]
    assert said["endpoints"]["manifest"] == "/ojs/manifest"
    assert said["endpoints"]["health"] == "/ojs/v1/health"


@pytest.mark.parametrize(("on", "level"), [(True, 4), (False, 0)])
def test_without_events_the_server_is_of_no_higher_level(on, level, ojs, settings):
    settings.OJS_UNIQUE = {"EVENTS": on}
    said = manifest(ojs)
    assert said["conformance_level"] == level
    assert said["capabilities"]["events"] is on


def test_the_strength_of_uniqueness_is_that_of_the_database(ojs, monkeypatch):
    said = manifest(ojs)
    assert said["unique_job_strength"] == "strong"
    assert said["capabilities"]["unique_jobs"] == capabilities.unique_jobs(Job, "default")
    monkeypatch.setattr(capabilities, "_keeps_promise", lambda model, using: False)
    said = manifest(ojs)
    assert said["unique_job_strength"] == said["capabilities"]["unique_jobs"]["strength"] == "best-effort"


def test_a_capability_is_declared_exactly_if_its_routes_exist(ojs):
    said = manifest(ojs)
    declared = {name: on for name, on in said["capabilities"].items() if name not in ("unique_jobs", "events")}
    declared.update(dict.fromkeys(said["extensions"], True))
    assert declared == {name: all(map(routed, paths)) for name, paths in ROUTES_OF.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest", "health", "openapi"])
def test_each_endpoint_of_the_manifest_answers(name, ojs):
    assert ojs.get(manifest(ojs)["endpoints"][name]).status_code == 200


@pytest.mark.every_database
def test_a_server_whose_database_answers_is_well(ojs):
    answer = ojs.get("/ojs/v1/health")
    assert answer.status_code == 200
    said = answer.json()
    assert (said["status"], said["version"]) == ("ok", "1.0")
    assert said["backend"] == {"type": connection.vendor, "status": "ok"}
    assert said["uptime_seconds"] >= 0


@pytest.fixture
def dead(django_db_blocker):
    """Declare a database whose server is not there; return the socket on which it would listen."""
    pytest.importorskip("psycopg")
    with socket.socket() as listener, django_db_blocker.unblock():
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        connections.databases["dead"] = connections.configure_settings(
            {
                **connections.databases,
                "dead": {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": port},
            }
        )["dead"]
        yield listener
    health._pings.pop("dead", None)
    del connections.databases["dead"]
    if hasattr(connections._connections, "dead"):
        del connections["dead"]


class DeadRouter:
    """Sends jobs, and nothing else, to the dead database."""

    def db_for_write(self, model, **hints):
        return "dead" if model is Job else None


def test_a_server_whose_database_is_gone_is_degraded(dead, settings, refused):
    settings.DATABASE_ROUTERS = [f"{__name__}.DeadRouter"]
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"status": ["rest_framework.permissions.AllowAny"]}}}
    answer = Client().get("/ojs/v1/health")
    assert answer.status_code == 503
    said = answer.json()
    assert said["status"] == "degraded"
    assert said["backend"] == {"type": "postgresql", "status": "unreachable"}
    answer = Client().get("/ojs/manifest")
    assert refused(answer, 503, "backend_error")["retryable"]
    assert answer["Retry-After"]


def test_a_database_that_hangs_costs_one_thread(dead):
    dead.listen()
    assert health.answers("dead", within=0.05) is False
    ping = health._pings["dead"]
    assert ping.is_alive()
    assert health.answers("dead", within=0.05) is False
    assert health._pings["dead"] is ping
    dead.close()
    ping.join(PATIENCE)
    assert not ping.is_alive()


def test_a_session_that_cannot_be_read_is_a_degraded_server_too(ojs, monkeypatch):
    def fail(*args):
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr("rest_framework.authentication.SessionAuthentication.authenticate", fail)
    assert ojs._client.get("/ojs/v1/health").json()["status"] == "degraded"
    answer = ojs.get("/ojs/manifest")
    assert answer.status_code == 503
    assert answer["Retry-After"]


@pytest.mark.parametrize("code", CODES)
def test_what_an_error_links_to_says_what_it_means(code, ojs):
    said = ojs.get(f"/ojs/v1/errors/{code}").json()
    assert (said["code"], said["status"], said["hint"]) == (code, CODES[code].status, CODES[code].hint)


def test_the_link_of_an_error_leads_to_its_page(ojs, refused):
    error = refused(ojs.get("/ojs/v1/errors/nothing"), 404, "not_found")
    path = re.sub("^https?://[^/]*", "", error["docs_url"])
    assert ojs.get(path).json()["code"] == "not_found"
