"""The units are parsed, and verified by systemd where it is installed. None is started here, but a
server starts with the command and the variables of its unit."""

from __future__ import annotations

import configparser
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, ROOT, unknown_variables
from tests.ports import free_port
from tests.programs import bound

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SERVER = DEPLOY / "systemd/queen.service"
VARIABLES = DEPLOY / "systemd/server.env"
OWN_POSTGRESQL = DEPLOY / "systemd/own-postgresql.conf"
_EVERYWHERE = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
    "Restart": "always",
}


def unit(path: Path) -> list[tuple[str, str]]:
    """Return the settings of the service; a name may come several times."""
    section, found = "", []
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((name, value))
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_locked_in_and_started_again(path: Path) -> None:
    settings = dict(unit(path))
    assert _EVERYWHERE.items() <= settings.items()
    assert "StateDirectory" in settings
    assert settings["ExecStart"].startswith("/opt/queen/bin/")
    assert not unknown_variables(path.read_text())
    configparser.ConfigParser(strict=False, interpolation=None).read_string(path.read_text())


def test_the_server_is_not_started_again_when_its_configuration_is_wrong() -> None:
    settings = dict(unit(SERVER))
    assert settings["RestartPreventExitStatus"] == "78"


def test_no_secret_is_in_a_unit() -> None:
    for path in [*UNITS, VARIABLES]:
        for line in path.read_text().splitlines():
            assert "_PASSWORD=" not in line and "_URL=" not in line and "_SECRET=" not in line


def test_the_variables_of_the_server_are_known() -> None:
    assert not unknown_variables(VARIABLES.read_text())


def environment(folder: Path, variables: str, *additions: Path) -> dict[str, str]:
    """What systemd gives to the server, with its folders below another one."""
    bin_ = Path(sys.executable).parent
    env: dict[str, str] = {}
    for name, value in [*unit(SERVER), *(pair for path in additions for pair in unit(path))]:
        if name == "Environment":
            key, _, text = value.partition("=")
            env[key] = text.replace("%d", str(folder / "credentials")).replace("%S", str(folder))
    env["PATH"] = env["PATH"].replace("/opt/queen/bin", str(bin_))
    said = [line for line in variables.splitlines() if line and not line.startswith("#")]
    env |= dict(line.split("=", 1) for line in said)
    for name, value in (pair for path in additions for pair in unit(path)):
        if name == "UnsetEnvironment":
            # Unset what the unit sets, and nothing else.
            del env[value]
    # Beside the machine's other servers it takes a port that is free.
    return {**env, "QUEEN_PORT": str(free_port())}


def give_credentials(folder: Path, **secrets: str) -> None:
    """Do what `LoadCredential=queen:/etc/queen/secrets` does with the files there."""
    (folder / "credentials").mkdir()
    for name, text in secrets.items():
        (folder / f"credentials/queen_{name.replace('_', '-')}").write_text(text)


def start(env: dict[str, str]) -> subprocess.Popen[str]:
    command = dict(unit(SERVER))["ExecStart"].split()
    command[0] = str(DEPLOY / "container" / Path(command[0]).name)
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def serve_once(env: dict[str, str]) -> None:
    """Start a server, wait until it is ready, and stop it."""
    said = []
    with bound(start(env)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("queen ready on "):
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert said[-1].startswith("queen ready on "), said
    assert process.returncode == 0


def test_the_unit_starts_a_server_as_the_page_says(tmp_path: Path, url_file: Path) -> None:
    give_credentials(tmp_path, database_url=url_file.read_text(), encryption_key="ab" * 32)
    env = environment(tmp_path, VARIABLES.read_text())
    serve_once(env)
    assert not (tmp_path / "queen/data").exists()


def test_with_the_addition_the_unit_brings_its_own_postgresql(tmp_path: Path) -> None:
    give_credentials(tmp_path, encryption_key="ab" * 32)
    env = environment(tmp_path, VARIABLES.read_text(), OWN_POSTGRESQL)
    serve_once(env)
    assert (tmp_path / "queen/data/postgres").is_dir()


def test_the_step_for_a_certificate_turns_tls_on(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/deploy.md").read_text()
    (step,) = re.findall(r"^sed -i .*$", page, re.MULTILINE)
    copy = tmp_path / "server.env"
    shutil.copy2(VARIABLES, copy)
    step = step.replace("/etc/queen/server.env", str(copy))
    subprocess.run(["sh", "-e", "-c", step], check=True)
    text = copy.read_text().replace("/etc/queen/tls", str(tmp_path))
    give_credentials(tmp_path, database_url="postgresql://127.0.0.1/none", encryption_key="ab" * 32)
    env = environment(tmp_path, text)
    assert env["QUEEN_HOST"] == "0.0.0.0"  # noqa: S104
    with bound(start(env)) as process:
        said, _ = process.communicate(timeout=60)
    # It is asked for, and where it is to be is what the step before has made.
    assert f"the TLS certificate {tmp_path}/server.pem cannot be read" in said
    assert process.returncode == 78
    assert re.search(r"^install .* server\.pem server\.key /etc/queen/tls/$", page, re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, for a machine where what they start is at another path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("queen-with-secrets", "python"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for path in UNITS:
        # A template is verified as an instance of it.
        name = path.name.replace("@.", "@orders.")
        text = path.read_text().replace("/opt/queen/bin/", f"{programs}/")
        (tmp_path / name).write_text(text)
    (tmp_path / "queen.service.d").mkdir()
    shutil.copy2(OWN_POSTGRESQL, tmp_path / "queen.service.d")
    return tmp_path


def test_systemd_finds_nothing_wrong(installed: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    units = sorted(str(path) for path in installed.glob("*.service"))
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "queen" in line]
    assert not ours, done.stderr
    for path in units:
        rated = subprocess.run(
            [analyze, "security", "--offline=true", "--threshold=45", path],
            capture_output=True,
            text=True,
            check=False,
        )
        if "unrecognized option" in rated.stderr:
            pytest.skip("this systemd rates nothing that is not installed")
        assert rated.returncode == 0, rated.stdout[-300:]
