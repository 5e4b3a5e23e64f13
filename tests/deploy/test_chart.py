"""The Helm chart is rendered, and what it renders holds together.

Helm renders and lints it too where it is installed; `kubernetes-validate` compares the objects with
the schemas of Kubernetes where it is. No cluster takes them here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ServerProcess
from tests.deploy.files import DEPLOY, unknown_variables
from tests.deploy.templates import Chart, Failed

CHART = DEPLOY / "helm/queen"
SMALL: dict[str, Any] = {"database": {"existingSecret": "queen-database"}}
OPEN: dict[str, Any] = {
    **SMALL,
    "auth": "none",
    "spool": {"persistent": False},
    "podDisruptionBudget": {"enabled": False},
}
LARGE: dict[str, Any] = {
    **SMALL,
    "encryption": {"existingSecret": "queen-keys"},
    "extraEnv": [{"name": "QUEEN_METRICS_QUEUES", "value": "20"}],
    "imagePullSecrets": [{"name": "registry"}],
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "queen-tls"},
    "pipelines": [{"name": "tea-per-second", "arguments": ["--every", "1"]}, {"name": "joined"}],
    "pipelineTokenSecret": "queen-pipelines",
    "podAnnotations": {"team": "orders"},
    "respPort": 6379,
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "spool": {"storageClassName": "local"},
}
VALUES = pytest.mark.parametrize("values", [SMALL, OPEN, LARGE], ids=["small", "open", "large"])
Object = dict[str, Any]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def pods(objects: list[Object]) -> list[Object]:
    return [each["spec"]["template"] for each in objects if "template" in each.get("spec", {})]


@VALUES
def test_names_and_labels_hold_together(values: dict[str, Any]) -> None:
    objects = Chart(CHART, values, "shop").objects()
    (servers,) = of_kind(objects, "StatefulSet")
    labels = servers["spec"]["template"]["metadata"]["labels"]
    assert servers["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "Service")}
    assert servers["spec"]["serviceName"] in services
    for service in services.values():
        assert service["selector"].items() <= labels.items()
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for monitor in of_kind(objects, "ServiceMonitor"):
        (watched,) = [
            each
            for each in of_kind(objects, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items()
            <= each["metadata"]["labels"].items()
        ]
        assert watched["metadata"]["name"] == "shop-queen"
    assert len({(each["kind"], each["metadata"]["name"]) for each in objects}) == len(objects)


@VALUES
def test_every_pod_is_locked_in_and_mounts_what_it_has(values: dict[str, Any]) -> None:
    objects = Chart(CHART, values).objects()
    claims = [
        claim["metadata"]["name"]
        for each in of_kind(objects, "StatefulSet")
        for claim in each["spec"].get("volumeClaimTemplates", [])
    ]
    for pod in pods(objects):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        # Those of a service named queen have the names of our options: QUEEN_PORT=tcp://...
        assert spec["enableServiceLinks"] is False
        volumes = {volume["name"] for volume in spec["volumes"]} | set(claims)
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["limits"]["memory"]
            names = [variable["name"] for variable in container["env"]]
            assert len(set(names)) == len(names)
            assert not unknown_variables(" ".join(names))
            for variable in container["env"]:
                assert isinstance(variable.get("value", ""), str)


def test_probes_ask_what_the_server_answers(server: ServerProcess) -> None:
    (pod,) = pods(Chart(CHART, SMALL).objects())
    (container,) = pod["spec"]["containers"]
    api = server.api()
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[name]["httpGet"]
        assert asked["port"] in {port["name"] for port in container["ports"]}
        assert api.call("GET", asked["path"]).status == 200
    # A restart does not bring a database back, and what is spooled has to wait meanwhile.
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_each_server_has_a_spool_that_outlives_it() -> None:
    (kept,) = of_kind(Chart(CHART, SMALL).objects(), "StatefulSet")
    assert kept["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "spool"
    (open_,) = of_kind(Chart(CHART, OPEN).objects(), "StatefulSet")
    assert "volumeClaimTemplates" not in open_["spec"]


def test_pipelines_are_jobs_with_a_checkpoint_each() -> None:
    objects = Chart(CHART, LARGE).objects()
    jobs, claims = of_kind(objects, "Job"), of_kind(objects, "PersistentVolumeClaim")
    assert [job["metadata"]["name"] for job in jobs] == [
        "queen-pipeline-tea-per-second",
        "queen-pipeline-joined",
    ]
    assert [each["metadata"]["name"] for each in claims] == [
        job["metadata"]["name"] for job in jobs
    ]
    first = jobs[0]["spec"]["template"]["spec"]["containers"][0]
    assert first["args"][:3] == ["pipeline", "run", "tea-per-second"]
    assert first["args"][-2:] == ["--every", "1"]
    assert not of_kind(Chart(CHART, SMALL).objects(), "Job")


def test_without_a_database_it_says_what_is_missing() -> None:
    with pytest.raises(Failed, match="names the secret with the URL of PostgreSQL"):
        Chart(CHART).render()


@VALUES
def test_kubernetes_knows_the_objects(values: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for each in Chart(CHART, values).objects():
        # Its schema is the operator's, not of Kubernetes.
        if each["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(each, "1.30", strict=True)


@VALUES
def test_helm_renders_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")
    (tmp_path / "values.json").write_text(json.dumps(values))
    given = ["-f", str(tmp_path / "values.json")]
    linted = subprocess.run(
        [helm, "lint", "--strict", str(CHART), *given], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout
    shown = subprocess.run(
        [helm, "template", "shop", str(CHART), *given], capture_output=True, text=True, check=True
    )
    rendered = [each for each in yaml.safe_load_all(shown.stdout) if each]
    ours = Chart(CHART, values, "shop").objects()
    assert sorted(map(str, rendered)) == sorted(map(str, ours))
