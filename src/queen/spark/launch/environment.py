"""A Spark session as Queen needs it.

What is set here was measured; whatever the caller sets wins. Some things must be right before
the JVM starts, because its Python processes get them from it: where `queen` is imported from,
which Python runs it, and that it finds PySpark compiled. They are set for the start only, and
then put back.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from queen.extras import require
from queen.spark.launch.java import cache_folder, find_java
from queen.spark.launch.python import check_executors_python, python_path, search_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Setting = str | int | float | bool

# The default forks a process for each file of a checkpoint: half of a micro-batch's time.
_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(name: str, master: str | None = None, **settings: Setting) -> SparkSession:
    """Return a Spark session with `format("queen")`, and settings that fit queues.

    `master` is `local[*]` unless it is given here, in `SPARK_MASTER` or to `spark-submit`;
    settings are Spark's own, with underscores for dots (`spark_sql_shuffle_partitions=4`) or as
    `**{"spark.…": …}`. A session that runs already is returned as it is, with the settings that
    can still change.
    """
    require("spark", "a Spark session")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from queen.spark import register

    submitted = _submitted()
    master = master or os.environ.get("SPARK_MASTER") or submitted.get("spark.master", "local[*]")
    # A name with dots is Spark's own; some end in that of a variable, such as QUEEN_TOKEN.
    given = {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
    builder = SparkSession.builder.appName(name).master(master)
    defaults = _defaults(master, given)
    chosen = {key: value for key, value in defaults.items() if key not in submitted} | given
    for key, value in chosen.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    is_new = SparkContext._active_spark_context is None
    if is_new:
        with _launch_environment(master, given) if not submitted else nullcontext():
            spark = builder.getOrCreate()
        # Progress is shown by Queen itself, and errors are raised.
        spark.sparkContext.setLogLevel("ERROR")
    else:
        spark = builder.getOrCreate()
    register(spark)
    return spark


def _submitted() -> dict[str, str]:
    """Return what `spark-submit` was told, when it has started this program and its JVM."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def cores_of(master: str) -> int:
    """Return how many tasks run at once on a local master; of a cluster this is a guess."""
    inside = master.partition("[")[2].rstrip("]").split(",")[0]
    if master == "local":
        return 1
    return int(inside) if inside.isdigit() else os.cpu_count() or 1


def _defaults(master: str, given: dict[str, Setting]) -> dict[str, Setting]:
    chosen: dict[str, Setting] = {
        "spark.sql.shuffle.partitions": cores_of(master),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataMicroBatches.enabled": True,
        "spark.sql.streaming.multipleWatermarkPolicy": "min",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": False,
    }
    if master.startswith("local"):
        # Where checkpoints are local files. A rename is all the atomicity there is, so two
        # drivers on one checkpoint may both reach the sink; the broker takes only one.
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = _FILE_MANAGER
        chosen_elsewhere = {"PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"} & os.environ.keys()
        if not chosen_elsewhere and "spark.pyspark.python" not in given:
            # Processes of Spark run the Python that runs here, so they have Queen.
            chosen["spark.python.daemon.module"] = "queen.spark.launch.daemon"
    return chosen


@contextmanager
def _launch_environment(master: str, given: dict[str, Setting]) -> Iterator[None]:
    """Set what the JVM must find in its environment when it starts, and put it back."""
    is_local = master.startswith("local")
    python = _python_of_processes(is_local, given)
    if python != sys.executable:
        check_executors_python(python)
    variables = {
        "JAVA_HOME": str(find_java().home),
        "PATH": search_path(),
        "PYTHONPATH": python_path(),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        "PYSPARK_PYTHON": python,
    }
    if is_local and python == sys.executable and "SPARK_HOME" not in os.environ:
        variables["SPARK_HOME"] = str(_home_without_archive())
    if "SPARK_LOCAL_IP" not in os.environ and (is_local or not _is_host_known()):
        # Spark on one machine listens to nobody else.
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _python_of_processes(is_local: bool, given: dict[str, Setting]) -> str:
    """Return the Python of Spark's processes; on a cluster, by the name it has on all machines."""
    asked = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return str(asked or (sys.executable if is_local else "python3"))


def _home_without_archive() -> Path:
    """Return a `SPARK_HOME` that is PySpark's own, less the archive of its Python code.

    Spark puts that archive first on the path of its Python processes, and what is imported
    from an archive is compiled each time: a second for each process, several for each query.
    Without it they find the installed package, which is compiled.
    """
    import pyspark

    installed = Path(pyspark.__file__).resolve().parent
    home = cache_folder() / f"spark-{sha256(bytes(installed)).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        # Another session may be making the same link.
        with suppress(FileExistsError):
            (home / name).symlink_to(installed / name)
    return home


def _is_host_known() -> bool:
    """Whether this machine's own name leads anywhere; without that Spark does not start."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return False
    return True
