"""The note in a checkpoint: whose it is, through kills at any moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import Conflict
from queen.spark.pipelines import files
from queen.spark.pipelines.checkpoint import Checkpoint
from queen.wire.pipelines import Definition, decode_definition
from tests.api import Api
from tests.spark.history import run_to_end


def _definition(where: str) -> Definition:
    reads = [{"name": "orders", "queues": ["orders"], "where": [where]}]
    return decode_definition({"name": "p", "reads": reads, "output": {"queue": "out"}})


def _claimed(spark: SparkSession, folder: Path, where: str = "true") -> str:
    """Note a definition as a run does; return the name of what it writes."""
    checkpoint = Checkpoint(spark, str(folder))
    note = checkpoint.note_for(_definition(where))
    with checkpoint.claim(note):
        return note.transaction


@pytest.fixture(params=["disk", "elsewhere"])
def _place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "elsewhere":
        monkeypatch.setattr(files, "is_local", lambda _: False)


@pytest.mark.usefixtures("_place")
def test_a_note_is_replaced_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    transaction = _claimed(spark, tmp_path)
    note = tmp_path / "queen.json"
    os.link(note, tmp_path / "before")
    before = note.read_bytes()
    assert _claimed(spark, tmp_path) == transaction
    assert note.samefile(tmp_path / "before")
    assert _claimed(spark, tmp_path, "data.n > 1") == transaction
    assert (tmp_path / "before").read_bytes() == before
    assert b"data.n > 1" in note.read_bytes()
    assert not (tmp_path / "queen.json.new").exists()


@pytest.mark.usefixtures("_place")
def test_a_note_without_its_name_yet_is_found(spark: SparkSession, tmp_path: Path) -> None:
    transaction = _claimed(spark, tmp_path)
    (tmp_path / "queen.json").rename(tmp_path / "queen.json.new")
    assert _claimed(spark, tmp_path) == transaction
    assert (tmp_path / "queen.json").exists()


def test_half_a_first_note_is_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "queen.json.new").write_text('{"transac')
    assert _claimed(spark, tmp_path) == _claimed(spark, tmp_path)


@pytest.mark.parametrize("found", ["", '{"transac', '{"transaction": 1}'])
def test_a_note_that_cannot_be_read_is_refused_in_words(
    spark: SparkSession, tmp_path: Path, found: str
) -> None:
    (tmp_path / "queen.json").write_text(found)
    with pytest.raises(Conflict, match="another checkpoint"):
        _claimed(spark, tmp_path)


def test_a_query_that_does_not_start_leaves_the_note_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    with pytest.raises(RuntimeError), checkpoint.claim(checkpoint.note_for(_definition("true"))):
        raise RuntimeError
    assert not (tmp_path / "queen.json").exists()
    _claimed(spark, tmp_path)
    before = (tmp_path / "queen.json").read_bytes()
    changed = checkpoint.note_for(_definition("data.n > 1"))
    with pytest.raises(RuntimeError), checkpoint.claim(changed):
        raise RuntimeError
    assert (tmp_path / "queen.json").read_bytes() == before


def test_a_run_that_ended_while_it_wrote_its_first_offsets_is_followed_by_another(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    api.push({"queue": queue, "payload": {}})
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for left in (".0.8f6b.tmp", "..0.8f6b.tmp.crc"):
        (offsets / left).write_text("v1")
    stream = queen.stream(f"p-{queue}").sources(queue).select("offset").to(f"out-{queue}")
    running = run_to_end(stream, spark, tmp_path)
    assert running.progress.output_rows == 1
    # Of a batch that was begun nothing is removed, whatever else is there.
    (offsets / ".1.8f6b.tmp").write_text("v1")
    before = {path.name for path in offsets.iterdir()}
    assert run_to_end(stream, spark, tmp_path).progress.output_rows == 0
    assert {path.name for path in offsets.iterdir()} >= before
