"""The files in ``examples/deploy``: their commands are ours, and their numbers, paths and names fit together."""

import json
import os
import re
import shlex
import subprocess
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import load_command_class
from django.db import connection
from gunicorn.config import Config

from django_ojs_unique.models import Job

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "examples" / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
WORKER_UNIT = "mysite-worker@.service"
LAST_WORDS = 10.0
"""Seconds that a worker may need beyond its --shutdown-timeout: 5 to finalize in an outage, 2 for threads, and some."""


@dataclass
class Started:
    """A command that one of the files starts, and how long it may take to stop."""

    where: str
    words: list[str]
    grace: float | None

    @property
    def name(self) -> str:
        """The command of manage.py, or the program."""
        return self.words[self.words.index("manage.py") + 1] if "manage.py" in self.words else Path(self.words[0]).name

    def parsed(self) -> Namespace:
        """What the command's own parser makes of it; raises what it raises."""
        if self.name == "gunicorn":
            return Config().parser().parse_args(self.words[1:])
        app = "django_ojs_unique" if self.name in ("runworker", "prunejobs", "jobs") else "django.core"
        parser = load_command_class(app, self.name).create_parser("manage.py", self.name)
        parser.called_from_command_line = False  # so that it raises
        return parser.parse_args(self.words[self.words.index("manage.py") + 2 :])


def unit(name: str) -> dict[str, list[str]]:
    """Return the values of each setting of a unit."""
    found: dict[str, list[str]] = {}
    for setting, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd" / name).read_text(), re.MULTILINE):
        found.setdefault(setting, []).append(value)
    return found


def manifests(kind: str | None = None) -> list[dict[str, Any]]:
    documents = [document for path in KUBERNETES for document in yaml.safe_load_all(path.read_text())]
    return [document for document in documents if kind in (None, document["kind"])]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for manifest in manifests():
        if "template" in manifest["spec"]:
            name = manifest["metadata"].get("name") or manifest["metadata"]["generateName"]
            yield name, manifest["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def image_command() -> list[str]:
    (written,) = re.findall(r"^CMD (.*)$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    words: list[str] = json.loads(written)  # what is no list would run under a shell
    return words


def options_of_instances() -> list[str]:
    """Return the WORKER_OPTIONS that the unit and its page suggest."""
    texts = [(DEPLOY / "systemd" / WORKER_UNIT).read_text(), (ROOT / "docs" / "deploy.md").read_text()]
    return re.findall(r"WORKER_OPTIONS=(-.*)$", "\n".join(texts), re.MULTILINE)


def all_started() -> Iterator[Started]:
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        settings = unit(path.name)
        grace = float(settings["TimeoutStopSec"][0]) if "TimeoutStopSec" in settings else None
        for command in settings["ExecStart"]:
            for options in ["", *options_of_instances()] if "$WORKER_OPTIONS" in command else [""]:
                yield Started(f"systemd {options}", shlex.split(command.replace("$WORKER_OPTIONS", options)), grace)
    yield Started("image", image_command(), None)
    for name, service in COMPOSE["services"].items():
        if "command" in service:
            assert isinstance(service["command"], list)
            grace = service.get("stop_grace_period")
            yield Started(f"compose {name}", service["command"], float(grace.removesuffix("s")) if grace else None)
    for name, pod in pods():
        for container in containers(pod):
            where = f"kubernetes {name} {container['name']}"
            yield Started(where, container["command"], pod.get("terminationGracePeriodSeconds"))


STARTED = list(all_started())
WORKERS = [started for started in STARTED if started.name == "runworker"]


@pytest.mark.parametrize("started", STARTED, ids=lambda started: f"{started.where}: {started.name}")
def test_each_command_is_one_that_its_program_takes(started: Started) -> None:
    started.parsed()


def test_each_way_to_deploy_has_a_worker_a_web_server_and_migrations() -> None:
    names = {(started.where.split()[0], started.name) for started in STARTED}
    for way in ("systemd", "compose", "kubernetes"):
        assert {(way, "runworker"), (way, "migrate")} <= names
    assert {way for way, name in names if name == "gunicorn"} == {"systemd", "image", "kubernetes"}
    assert len(options_of_instances()) == 2


@pytest.mark.parametrize("started", WORKERS, ids=lambda started: started.where)
def test_a_worker_has_time_to_stop(started: Started) -> None:
    assert started.grace is not None
    assert started.grace >= started.parsed().shutdown_timeout + LAST_WORDS


def test_only_the_main_process_of_a_unit_hears_the_first_signal() -> None:
    settings = unit(WORKER_UNIT)
    assert (settings["KillMode"], settings["KillSignal"], settings["Restart"]) == (["mixed"], ["SIGTERM"], ["always"])


# Paths


def test_the_unit_makes_the_folder_of_its_health_file() -> None:
    (worker, *_) = [started for started in WORKERS if started.where.startswith("systemd")]
    (folder,) = unit(WORKER_UNIT)["RuntimeDirectory"]
    assert worker.parsed().health_file == f"%t/{folder}/health"


def worker_container() -> tuple[dict[str, Any], dict[str, Any]]:
    ((pod, container),) = [
        (pod, container) for _, pod in pods() for container in containers(pod) if "runworker" in container["command"]
    ]
    return pod, container


def test_the_health_file_of_a_pod_lies_in_a_volume_that_can_be_written() -> None:
    pod, container = worker_container()
    (worker,) = [started for started in WORKERS if started.where.startswith("kubernetes")]
    volumes = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in volumes}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert str(Path(worker.parsed().health_file).parent) in writable


def probes() -> Iterator[tuple[str, str, str]]:
    """Yield which probe, its shell command, and the health file of its worker."""
    health_files = {started.where.split()[0]: started.parsed().health_file for started in WORKERS}
    kind, test = COMPOSE["services"]["worker"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    yield "compose", test.replace("$$", "$"), health_files["compose"]
    _, container = worker_container()
    for name in ("readinessProbe", "livenessProbe"):
        shell, flag, test = container[name]["exec"]["command"]
        assert (shell, flag) == ("sh", "-c")
        yield name, test, health_files["kubernetes"]


@pytest.mark.parametrize("probe", list(probes()), ids=lambda probe: probe[0])
def test_a_probe_asks_whether_its_workers_health_file_is_fresh(probe: tuple[str, str, str], tmp_path: Path) -> None:
    _, test, health_file = probe
    file = tmp_path / "health"
    assert health_file in test

    def succeeds() -> bool:
        command = test.replace(health_file, str(file))
        return subprocess.run(["sh", "-c", command], capture_output=True).returncode == 0

    assert not succeeds()
    file.touch()
    assert succeeds()
    os.utime(file, (time.time() - 3600, time.time() - 3600))
    assert not succeeds()


# Ports, names, order


def port_of(started: Started) -> int:
    bind = started.parsed().bind[0]
    return int(bind.rpartition(":")[2])


def test_ports_agree() -> None:
    (image,) = [port_of(started) for started in STARTED if started.where == "image"]
    assert COMPOSE["services"]["web"]["ports"] == [f"{image}:{image}"]
    (pod,) = [port_of(started) for started in STARTED if started.where.startswith("kubernetes mysite-web")]
    (web,) = [container for _, pod in pods() for container in containers(pod) if container["name"] == "web"]
    assert [port["containerPort"] for port in web["ports"]] == [pod]
    assert web["readinessProbe"]["tcpSocket"]["port"] == pod
    (service,) = manifests("Service")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == [pod]


@pytest.mark.slow
def test_what_selects_pods_selects_some() -> None:
    labels = [manifest["spec"]["template"]["metadata"]["labels"] for manifest in manifests("Deployment")]
    for manifest in manifests("Deployment"):
        assert manifest["spec"]["selector"]["matchLabels"] == manifest["spec"]["template"]["metadata"]["labels"]
    assert manifests("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"] in labels
    assert manifests("Service")[0]["spec"]["selector"] in labels
    deployments = {manifest["metadata"]["name"] for manifest in manifests("Deployment")}
    (scaled,) = manifests("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in deployments
    assert scaled["spec"]["minReplicaCount"] >= 1


def test_all_pods_run_one_release() -> None:
    assert len({container["image"] for _, pod in pods() for container in containers(pod)}) == 1


def test_migrations_come_first_and_workers_before_the_web_server() -> None:
    services = COMPOSE["services"]
    after_migrations = {"migrate": {"condition": "service_completed_successfully"}}
    assert services["worker"]["depends_on"] == after_migrations
    assert services["web"]["depends_on"] == {**after_migrations, "worker": {"condition": "service_healthy"}}


@pytest.mark.django_db
def test_the_query_that_scales_workers_counts_what_is_available() -> None:
    Job.objects.enqueue("email.send")
    Job.objects.enqueue("email.send").job.cancel()
    with connection.cursor() as cursor:
        cursor.execute(manifests("ScaledObject")[0]["spec"]["triggers"][0]["metadata"]["query"])
        assert cursor.fetchone() == (1,)
