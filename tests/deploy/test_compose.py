"""The compose file says what it shall, and Compose understands it where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, unknown_variables

FILE = DEPLOY / "compose/compose.yaml"


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


def test_services_wait_for_each_other_and_end_in_order(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services.keys() == {"postgres", "server"}
    assert services["server"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    # That of the server is in its image.
    assert "healthcheck" in services["postgres"]
    for service in services.values():
        assert service["restart"] == "unless-stopped"
        assert service["stop_grace_period"] == "60s"
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in compose["volumes"]


def test_no_secret_is_in_it_or_in_git(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in service["environment"].items():
            assert not name.endswith(("PASSWORD", "KEY", "URL", "SECRET")), name
            if name.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"]
    for secret in compose["secrets"].values():
        path = (FILE.parent / secret["file"]).relative_to(DEPLOY.parent)
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
        assert ignored.returncode == 0, path


def test_the_server_is_built_here_and_gets_variables_it_knows(compose: dict[str, Any]) -> None:
    server = compose["services"]["server"]
    context = (FILE.parent / server["build"]["context"]).resolve()
    assert (context / server["build"]["dockerfile"]).exists()
    assert server["ports"] == ["127.0.0.1:6632:6632"]
    assert not unknown_variables(FILE.read_text())


def test_compose_understands_it(tmp_path: Path) -> None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and not subprocess.run(
                [*command, "version"], capture_output=True, check=False
            ).returncode
        ):
            break
    else:
        pytest.skip("Compose is not installed")
    copy = tmp_path / "deploy/compose"
    shutil.copytree(FILE.parent, copy)
    for name in ("postgres_password", "encryption_key"):
        (copy / "secrets" / name).write_text("secret")
    done = subprocess.run(
        [*command, "-f", str(copy / "compose.yaml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
