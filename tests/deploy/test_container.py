"""The container file is parsed and its steps are tried one by one: no engine runs here.

What is not run: pulling the base image, and the stages in one build. `QUEEN_TEST_LONG` makes the
environment of the image by its own step, and starts the server from there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queen.client import SyncQueen
from tests.deploy.files import DEPLOY, ROOT, unknown_variables
from tests.long import IS_LONG
from tests.ports import free_port
from tests.programs import bound

FILE = DEPLOY / "container/Containerfile"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(word, rest) for word, rest in pairs]


def last(word: str) -> str:
    return [rest for each, rest in instructions() if each == word][-1]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last("ENV")))


def test_it_runs_as_nobody_special_and_is_asked_how_it_is() -> None:
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert len(stages) == 2 and stages[0].endswith(" AS build")
    assert last("USER") == "10001:10001"
    assert json.loads(last("ENTRYPOINT")) == ["queen-with-secrets"]
    assert json.loads(last("CMD")) == ["serve"]
    assert json.loads(last("HEALTHCHECK").partition(" CMD ")[2]) == ["queen-is-ready"]
    assert not unknown_variables(FILE.read_text())


def test_what_it_copies_is_there_and_is_sent_along() -> None:
    sent = (FILE.parent / "Containerfile.dockerignore").read_text().splitlines()
    kept = tuple(line.removeprefix("!") for line in sent if line.startswith("!"))
    copied = [
        name
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for name in [each for each in rest.split() if not each.startswith("--")][:-1]
    ]
    assert len(copied) > 5
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name.startswith(kept), name


def test_the_versions_it_pins_are_those_of_the_lock(tmp_path: Path) -> None:
    step = next(rest for word, rest in instructions() if word == "RUN" and "pins.txt" in rest)
    command = step.partition(" && ")[0].replace("pins.txt", str(tmp_path / "pins.txt"))
    subprocess.run(["sh", "-e", "-c", command], cwd=ROOT, check=True)
    pins = (tmp_path / "pins.txt").read_text().splitlines()
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    assert [re.split(r"\[|==", pin)[0] for pin in pins] == locked
    assert not [pin for pin in pins if "\\" in pin]


def test_a_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def opt_queen(tmp_path: Path) -> Path:
    """What is in /opt/queen: made as the image makes it if there is time, else the tests' own."""
    if not IS_LONG:
        return Path(sys.executable).parent.parent
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements/dev.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src")
    step = next(rest for word, rest in instructions() if word == "RUN" and "pins.txt" in rest)
    step = step.replace("/opt/queen", str(tmp_path / "queen")).replace("/source", str(source))
    step = step.replace("pip wheel", f"{sys.executable} -m pip wheel")
    env = {**os.environ, "EXTRAS": "server"}
    subprocess.run(["sh", "-e", "-c", step], cwd=source, env=env, check=True)
    return tmp_path / "queen"


@pytest.fixture
def contained(tmp_path: Path, opt_queen: Path) -> dict[str, str]:
    """The environment of the container; its folders are below that of the test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("queen-with-secrets", "queen-is-ready"):
        shutil.copy2(FILE.parent / name, programs)
    said = image_environment()
    assert said["PATH"] == "/opt/queen/bin:$PATH"
    said["PATH"] = f"{programs}:{opt_queen / 'bin'}:/usr/bin:/bin"
    said = {key: value.replace("/var/lib/queen", str(tmp_path)) for key, value in said.items()}
    # Beside the machine's other servers it takes a port that is free, and only its own address.
    return {**said, "QUEEN_HOST": "127.0.0.1", "QUEEN_PORT": str(free_port())}


def is_ready(env: dict[str, str]) -> bool:
    command = json.loads(last("HEALTHCHECK").partition(" CMD ")[2])
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


@pytest.mark.timeout(900 if IS_LONG else 300)
def test_its_entry_point_serves(contained: dict[str, str], url_file: Path) -> None:
    env = {**contained, "QUEEN_DATABASE_URL_FILE": str(url_file)}
    assert not is_ready(env)
    command = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    started = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    with bound(started) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("queen ready on "):
                break
        assert is_ready(env)
        # Some platforms give the port by this name.
        other = {key: value for key, value in env.items() if key != "QUEEN_PORT"}
        assert is_ready({**other, "PORT": env["QUEEN_PORT"]})
        token = re.search(r"first admin token, shown only now: (\S+)", "".join(said))
        assert token is not None
        with SyncQueen(f"http://127.0.0.1:{env['QUEEN_PORT']}", token=token[1]) as client:
            client.queue("orders").push({"n": 1})
            assert [message.data for message in client.queue("orders").limit(1)] == [{"n": 1}]
        # The shell of the entry point is gone: the signal reaches the server itself.
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not is_ready(env)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "which cannot be read"),
        ("folder", "which cannot be read"),
        ("empty", "which is empty"),
        ("blank", "which is empty"),
    ],
)
def test_a_secret_that_is_not_there_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "blank").write_text(" \n")
    done = start_with_secret(str(tmp_path / name))
    assert done.returncode == 78
    assert done.stderr == f"queen: QUEEN_DATABASE_URL_FILE names {tmp_path / name}, {said}\n"


def test_a_secret_without_a_file_is_named() -> None:
    done = start_with_secret("")
    assert done.returncode == 78
    assert done.stderr.startswith("queen: QUEEN_DATABASE_URL_FILE is set, but empty")


def start_with_secret(path: str) -> subprocess.CompletedProcess[str]:
    env = {"QUEEN_DATABASE_URL_FILE": path, "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [FILE.parent / "queen-with-secrets", "serve"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
