"""Free-form pipelines: a function from DataFrames to a DataFrame, in a file.

    from queen.spark import pipeline

    @pipeline(reads={"clicks": "user string, page string"}, writes="enriched")
    def enrich(clicks):
        return clicks.select("data.user", "data.page")

`queen pipeline run enrich.py` runs it; the broker knows it by the name of the function.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from queen.errors import BadRequest
from queen.wire.pipelines import Definition, Output, Reads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen.spark.pipelines.compiler import CompiledPipeline
    from queen.spark.pipelines.run import Running

PipelineFunction = Callable[..., Any]

# Begins the name under which a file is loaded, so that it never hides another module.
_PREFIX = "_pipeline_"


class Function(NamedTuple):
    """A function that is a pipeline, and what it reads and writes."""

    definition: Definition
    make: PipelineFunction
    # Whether its DataFrames have marker rows, for `queen.spark.windowed`.
    markers: bool

    def __call__(self, *frames: DataFrame) -> Any:
        """Call the function itself, as a test does."""
        return self.make(*frames)

    def run(self, spark: SparkSession, **options: Any) -> Running:
        """Start it as `queen.spark.run_pipeline` does, with the same options; returns at once."""
        from queen.spark.pipelines.run import Options, start_pipeline, store

        given = Options(**options)
        store(self.definition, given, replace=True)
        return start_pipeline(self.definition, spark, given, self)

    def apply(self, frames: Mapping[str, DataFrame]) -> CompiledPipeline:
        """Return what the function makes of what it reads."""
        result = self.make(*(frames[side.name] for side in self.definition.reads))
        if self.make.__module__.startswith(_PREFIX):
            # It may have imported something only now.
            _send_along(self.make.__module__)
        if not hasattr(result, "columns"):
            raise BadRequest(f"{self.definition.name}: the function returns no DataFrame")
        return _as_compiled(result)


def pipeline(
    *,
    reads: str | Sequence[str] | Mapping[str, str | None],
    writes: str,
    name: str | None = None,
    namespace: str = "",
    markers: bool = False,
) -> Callable[[PipelineFunction], Function]:
    """Make a pipeline of a function; it gets one DataFrame for each queue that it reads.

    `reads` names a queue, several, or maps each to the schema of its `data`. A result that
    has no column `data` becomes one, a structure of all its columns; a column `partition` says
    where it goes. With `markers` the DataFrames are what `queen.spark.windowed` needs.
    """

    def decorate(function: PipelineFunction) -> Function:
        definition = Definition(
            name=name or function.__name__,
            namespace=namespace,
            kind="function",
            reads=[
                Reads(name=queue, queues=[queue], schema=fields)
                for queue, fields in _queues_and_schemas(reads)
            ],
            code=_code_of(function),
            output=Output(queue=writes),
        )
        return Function(definition, function, markers)

    return decorate


def load(location: str) -> Function:
    """Return the pipeline in a file: `enrich.py`, or `enrich.py:function` of several."""
    path, _, asked = location.partition(":")
    contents = vars(_load_module(Path(path)))
    functions = {name: value for name, value in contents.items() if isinstance(value, Function)}
    if asked:
        if asked not in functions:
            raise BadRequest(
                f"{path} has no pipeline {asked!r}, only: {', '.join(functions) or 'none'}"
            )
        return functions[asked]
    if len(functions) != 1:
        many = ", ".join(f"{path}:{name}" for name in functions)
        raise BadRequest(
            f"{path} has several pipelines; name one: {many}"
            if functions
            else f"{path} has no function with @pipeline(reads=…, writes=…)"
        )
    return next(iter(functions.values()))


def _load_module(path: Path) -> Any:
    if not path.exists():
        raise BadRequest(f"there is no file {path}")
    name = _PREFIX + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        # Like a program, it finds what lies beside it.
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    _send_along(name)
    return module


def _send_along(name: str) -> None:
    """Let functions of a file and of its neighbours travel to tasks with their code.

    The processes that run the tasks can import neither.
    """
    from pyspark import cloudpickle

    own = sys.modules[name]
    assert own.__file__ is not None
    folder = Path(own.__file__).resolve().parent
    neighbours = [other for other in list(sys.modules.values()) if _is_beside(other, folder)]
    for module in (own, *neighbours):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _is_beside(module: ModuleType, folder: Path) -> bool:
    """Whether a module was imported from a folder, or from a package in it."""
    file, top = getattr(module, "__file__", None), module.__name__.partition(".")[0]
    if file is None or top == "queen" or not Path(file).is_relative_to(folder):
        return False
    return Path(file).relative_to(folder).parts[0] in (top, f"{top}.py")


def _queues_and_schemas(
    reads: str | Sequence[str] | Mapping[str, str | None],
) -> list[tuple[str, str | None]]:
    if isinstance(reads, str):
        return [(reads, None)]
    if isinstance(reads, Mapping):
        return list(reads.items())
    return [(queue, None) for queue in reads]


def _code_of(function: PipelineFunction) -> str:
    """Return what changes when the function does something else; not with its comments."""
    source = textwrap.dedent(inspect.getsource(function))
    return hashlib.sha256(ast.dump(ast.parse(source)).encode()).hexdigest()[:16]


def _as_compiled(result: DataFrame) -> CompiledPipeline:
    from pyspark.sql import functions as f

    from queen.spark.pipelines.compiler import PARTITION, CompiledPipeline
    from queen.spark.sink.partition_names import partition_name

    columns = result.columns
    partition = f.col("partition") if "partition" in columns and "data" in columns else f.lit(None)
    is_message = "data" in columns
    rows = result.withColumn(PARTITION, partition_name(partition.cast("string")))
    return CompiledPipeline(rows, None, is_message)
