"""A real cluster: a master and two workers, one of which may die in the end.

The machines of the cluster have Spark, pyarrow and numpy, and nothing of ours: executors get
Queen from the archive of `queen pipeline package`. The driver runs in a process of its own, as
`queen pipeline run` or `spark-submit` starts it, in an environment that nobody has activated.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped,unused-ignore]
import pyspark
import pytest

from queen import SyncQueen
from queen.spark.launch.java import find_java
from tests import waiting
from tests.api import Api
from tests.cli.conftest import QUEEN, environment
from tests.conftest import ServerProcess
from tests.long import LONG
from tests.ports import free_port
from tests.spark.history import messages

ROOT = Path(__file__).parents[2]
_HOME = Path(pyspark.__file__).parent
_EXECUTOR = "CoarseGrainedExecutorBackend"
_PATIENCE_S = 400
# What is on the PATH of a machine by itself.
_SYSTEM = "/usr/local/bin:/usr/bin:/bin"
_SMALL = ("spark.ui.enabled=false", "spark.executor.memory=512m", "spark.cores.max=2")
_PIPELINE = """
from queen.spark import pipeline

@pipeline(reads={{"{queue}": "n bigint"}}, writes="{out}", name="{name}")
def twice(numbers):
    return numbers.repartition(2).selectExpr("data.n", "data.n * 2 as twice")
"""
_NOTEBOOK = """
import sys
from pyspark.sql import SparkSession
import queen.spark

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
queen.spark.register(spark)
print(spark.read.format("queen").option("queue", sys.argv[1]).load().count())
"""
# What runs Python on the machines of the cluster. It does not see what is installed here.
_PYTHON = """#!/bin/sh
PYTHONPATH="$PYTHONPATH:{machine}" exec {python} -S "$@"
"""


class Cluster(NamedTuple):
    url: str
    workers: list[psutil.Process]
    python: Path

    def executors(self) -> list[psutil.Process]:
        """The executors of all workers that live."""
        return [one for worker in self.workers for one in _children(worker) if _is_executor(one)]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(_EXECUTOR in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        # Workers start other programs too, and some have just ended.
        return False


def started(role: str, folder: Path, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        **more,
    }
    # The workers' machines have no Queen of their own.
    env.pop("PYTHONPATH", None)
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *arguments]
    with (folder / f"{role}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=folder)


def end(process: psutil.Process) -> None:
    """End a process and those it started, by their ids."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(what: Any, ended: subprocess.Popen[bytes] | None = None) -> Any:
    """Wait until something is true, as long as the process that makes it so lives."""

    def looked() -> Any:
        found = what()
        assert found or ended is None or ended.poll() is None, "it has ended"
        return found

    return waiting.until(looked, _PATIENCE_S, look_s=0.1)


def machine(folder: Path) -> Path:
    """What a machine of a cluster has beside Spark itself."""
    made = folder / "machine"
    made.mkdir()
    installed = _HOME.parent
    for name in ("numpy", "numpy.libs", "pyarrow", "pyspark", "py4j"):
        if (installed / name).exists():
            (made / name).symlink_to(installed / name)
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(_PYTHON.format(python=sys.executable, machine=made))
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of the cluster's machines."""
    return machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def cluster(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    where = ("--host", "127.0.0.1", "--webui-port", str(free_port()))
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:

        def start(role: str, *arguments: str) -> subprocess.Popen[bytes]:
            process = started(role, folder, *arguments, PATH=f"{python.parent}:{_SYSTEM}")
            running.callback(process.wait, timeout=30)
            running.callback(end, psutil.Process(process.pid))
            return process

        master = start("master.Master", *where, "--port", str(port))
        until(lambda: is_listening(port), master)
        size = ("--cores", "1", "--memory", "1g")
        workers = [
            start("worker.Worker", "--host", "127.0.0.1", "--webui-port", str(free_port()),
                  *size, "--work-dir", str(folder / f"work-{number}"), url)
            for number in range(2)
        ]  # fmt: skip
        yield Cluster(url, [psutil.Process(one.pid) for one in workers], python)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "queen.tar.gz"
    packed = [QUEEN, "pipeline", "package", "--to", str(path)]
    subprocess.run(packed, check=True, capture_output=True, timeout=_PATIENCE_S)
    return path


@pytest.fixture
def driver_env(server: ServerProcess) -> dict[str, str]:
    """The environment of a shell on the driver's machine, where nothing has been activated."""
    gone = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "SPARK_HOME")
    kept = {key: value for key, value in environment(server.url).items() if key not in gone}
    return {**kept, "PATH": _SYSTEM, "SPARK_LOCAL_IP": "127.0.0.1"}


def run_command(file: Path, cluster: Cluster, archive: Path, *more: str) -> list[str]:
    """The command that runs a pipeline on the cluster."""
    command = [QUEEN, "pipeline", "run", str(file), "--master", cluster.url, "--from", "earliest"]
    command += ["--package", str(archive), "--checkpoint", str(file.with_name("checkpoint"))]
    return [*command, *(part for one in _SMALL for part in ("--conf", one)), *more]


@pytest.mark.slow
def test_the_python_of_the_executors_has_nothing_of_ours(python: Path) -> None:
    code = "import pyarrow, numpy, pyspark; import msgspec"
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'msgspec'"


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_session_of_somebody_else_plans_with_that_python(
    python: Path, driver_env: dict[str, str], api: Api, queue: str
) -> None:
    api.push(*({"queue": queue, "payload": {"n": n}} for n in range(5)))
    env = {**driver_env, "PYSPARK_PYTHON": str(python), "JAVA_HOME": str(find_java().home)}
    command = [sys.executable, "-c", _NOTEBOOK, queue]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=_PATIENCE_S, check=False
    )
    assert ran.stdout == "5\n", ran.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_python_that_is_named_the_driver_plans_with_its_own(
    cluster: Cluster,
    archive: Path,
    driver_env: dict[str, str],
    api: Api,
    queue: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / "twice.py"
    file.write_text(_PIPELINE.format(queue=queue, out=f"{queue}-out", name=f"p-{queue}"))
    api.push(*({"queue": queue, "payload": {"n": n}} for n in range(50)))
    command = run_command(file, cluster, archive, "--once")
    ran = subprocess.run(
        command, capture_output=True, text=True, env=driver_env, timeout=_PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    rows = messages(api, f"{queue}-out")
    assert sorted(row["twice"] for row in rows) == list(range(0, 100, 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_about_spark_submit_does_what_it_says(
    cluster: Cluster,
    driver_env: dict[str, str],
    server: ServerProcess,
    api: Api,
    queue: str,
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/howto/spark-submit.md").read_text()
    own = {
        "spark://head:7077": cluster.url,
        "http://queen-1:6632": server.url,
        "/shared/checkpoints": str(tmp_path / "checkpoints"),
        "large-orders": f"large-{queue}",
        '"orders"': f'"{queue}"',
    }
    for said, meant in own.items():
        page = page.replace(said, meant)
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    packing, submitting, stopping = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.DOTALL)
    (tmp_path / "large_orders.py").write_text(program)
    (tmp_path / "spark-defaults.conf").write_text("\n".join(_SMALL).replace("=", " "))
    here = {**driver_env, "PATH": f"{Path(QUEEN).parent}:{_SYSTEM}"}
    subprocess.run(["sh", "-ec", packing], check=True, env=here, cwd=tmp_path, capture_output=True)
    # The machine from which it is submitted is one of the cluster: Spark, and no Queen.
    there = {
        **driver_env,
        "PATH": f"{cluster.python.parent}:{_HOME / 'bin'}:{_SYSTEM}",
        "SPARK_HOME": str(_HOME),
        "SPARK_CONF_DIR": str(tmp_path),
        "JAVA_HOME": str(find_java().home),
    }
    orders = [{"user": "ada", "amount": float(amount)} for amount in range(90, 110)]
    api.push(*({"queue": queue, "payload": order} for order in orders))
    with (
        (tmp_path / "driver.log").open("wb") as log,
        subprocess.Popen(
            ["sh", "-ec", submitting], stdout=log, stderr=log, env=there, cwd=tmp_path
        ) as driver,
    ):
        try:
            until(lambda: len(messages(api, f"large-{queue}")) >= 10, driver)
            subprocess.run(["sh", "-ec", stopping], check=True, env=here, capture_output=True)
            driver.wait(_PATIENCE_S)
        finally:
            if driver.poll() is None:
                end(psutil.Process(driver.pid))
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert messages(api, f"large-{queue}") == orders[10:]


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_survives_the_death_of_a_worker(
    cluster: Cluster,
    archive: Path,
    driver_env: dict[str, str],
    server: ServerProcess,
    api: Api,
    queue: str,
    tmp_path: Path,
) -> None:
    name, file = f"p-{queue}", tmp_path / "twice.py"
    file.write_text(_PIPELINE.format(queue=queue, out=f"{queue}-out", name=name))
    # A path that is there on all machines: Spark plans with it on the driver's, too.
    env = {**driver_env, "PYSPARK_PYTHON": str(cluster.python)}
    command = run_command(file, cluster, archive, "--every", "0.1")

    def push(first: int) -> None:
        api.push(*({"queue": queue, "payload": {"n": n}} for n in range(first, first + 50)))

    push(0)
    with (
        SyncQueen(server.url) as queen,
        (tmp_path / "driver.log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env) as driver,
    ):
        seen: list[Any] = []

        def have(rows: int) -> bool:
            out = queen.queue(f"{queue}-out").group("test")
            seen.extend(out.pop(wait_s=1, batch=1000, auto_ack=True))
            return len(seen) >= rows

        try:
            until(lambda: have(50), driver)
            until(lambda: len(cluster.executors()) == 2, driver)
            for first in range(50, 500, 50):
                push(first)
                if first == 250:
                    # The machine is gone: the worker, its executor and what that has started.
                    end(cluster.workers[0])
            until(lambda: have(500), driver)
            push(500)
            until(lambda: have(550), driver)
            driver.send_signal(signal.SIGTERM)
            out, _ = driver.communicate(timeout=_PATIENCE_S)
        finally:
            if driver.poll() is None:
                end(psutil.Process(driver.pid))
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert json.loads(out)["state"] == "stopped"
    assert len(cluster.executors()) <= 1
    rows = messages(api, f"{queue}-out")
    assert sorted(row["n"] for row in rows) == list(range(550))
    assert all(row["twice"] == 2 * row["n"] for row in rows)
    assert api.call("GET", f"/api/v1/pipelines/{name}").json["state"] == "stopped"
