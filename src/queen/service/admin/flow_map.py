"""The map: which queue flows through what into which queue.

It is drawn from what the broker knows, and nothing is guessed:

    queue ──▶ group             there is such a group; how much it acknowledges is counted
    group ──▶ queue             it pushed there in the transaction in which it acknowledged
    queue ──▶ stream ──▶ queue  the definition; and where results of windows were pushed
    queue ──▶ pipeline ──▶ …    the definition; rates are those that the run reports
    query ──▶ queue             a query of Spark that is no pipeline has published there

A consumer that pushes apart from its acks leaves no trace of that. What nothing has passed for a
day is forgotten, except where a definition says it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from queen.core.names import labels_of
from queen.service.admin.pipelines import Pipelines, definition_of, progress_of, state_of
from queen.service.rows import Record
from queen.storage.database import Database
from queen.wire.pipelines import Definition

# How much of each kind is looked at; a picture of more would show nothing.
_MOST_GROUPS = 400
_MOST_FLOWS = 800
_MOST_DEFINED = 200


class Node(NamedTuple):
    id: str
    kind: str
    name: str
    detail: dict[str, Any]


class Edge(NamedTuple):
    source: str
    target: str
    kind: str
    per_second: float | None


class Drawing:
    """Nodes and edges, each once."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str, str], Edge] = {}
        self.is_cut = False

    def queue(self, name: str) -> str:
        return self.node("queue", name, name)

    def node(self, kind: str, key: str, name: str, **detail: Any) -> str:
        node_id = f"{kind}:{key}"
        if node_id not in self.nodes:
            self.nodes[node_id] = Node(node_id, kind, name, detail)
        return node_id

    def edge(self, source: str, target: str, kind: str, per_second: float | None) -> None:
        known = self.edges.get((source, target, kind))
        if known is not None and per_second is not None:
            per_second += known.per_second or 0.0
        elif known is not None:
            per_second = known.per_second
        self.edges[source, target, kind] = Edge(source, target, kind, per_second)

    def hide(self, node_ids: set[str]) -> None:
        self.nodes = {key: node for key, node in self.nodes.items() if key not in node_ids}
        self.edges = {key: edge for key, edge in self.edges.items() if node_ids.isdisjoint(key[:2])}

    def keep_near(self, node_id: str) -> None:
        """Leave out what is not connected with a node, in whatever direction."""
        near, unseen = {node_id}, [node_id]
        neighbours: dict[str, set[str]] = {}
        for edge in self.edges.values():
            neighbours.setdefault(edge.source, set()).add(edge.target)
            neighbours.setdefault(edge.target, set()).add(edge.source)
        while unseen:
            for other in neighbours.get(unseen.pop(), set()) - near:
                near.add(other)
                unseen.append(other)
        self.nodes = {key: node for key, node in self.nodes.items() if key in near}
        self.edges = {key: edge for key, edge in self.edges.items() if edge.source in near}

    def keep_busiest(self, count: int) -> None:
        """Leave out the edges that carry least, and what is then connected with nothing."""
        if len(self.edges) <= count:
            return
        self.is_cut = True
        edges = sorted(self.edges.items(), key=lambda item: -(item[1].per_second or 0.0))
        self.edges = dict(edges[:count])
        ends = {end for edge in self.edges.values() for end in (edge.source, edge.target)}
        self.nodes = {key: node for key, node in self.nodes.items() if key in ends}


class FlowMap:
    def __init__(self, database: Database, pipelines: Pipelines) -> None:
        self._database = database
        self._pipelines = pipelines

    async def draw(self, namespaces: list[str] | None, queue: str | None, limit: int) -> Drawing:
        """Return what flows; only what is connected with a queue when one is named."""
        drawing = Drawing()
        queries = await self._draw_pipelines(drawing, namespaces)
        await self._draw_groups(drawing, namespaces, "")
        if queue is not None:
            # Its own groups may be too quiet to be among the busiest of all.
            await self._draw_groups(drawing, namespaces, queue)
        await self._draw_streams(drawing, namespaces)
        await self._draw_flows(drawing, namespaces, queries)
        if queue is not None:
            drawing.keep_near(drawing.queue(queue))
        drawing.keep_busiest(limit)
        await self._describe_queues(drawing, namespaces)
        return drawing

    async def _draw_pipelines(
        self, drawing: Drawing, namespaces: list[str] | None
    ) -> dict[str, str]:
        """Draw pipelines; return the nodes of those whose query of Spark is known, by its id."""
        queries = {}
        rows = await self._pipelines.page(namespaces, _MOST_DEFINED, 0)
        for row in rows:
            definition, progress = definition_of(row), progress_of(row)
            state = state_of(row)
            node = drawing.node("pipeline", row["name"], row["name"], state=state)
            is_running = progress is not None and state == "running"
            rate = progress.input_rows_per_second if progress and is_running else 0.0
            _draw_inputs(drawing, node, definition, rate)
            _draw_outputs(drawing, node, definition)
            if progress is not None and progress.query_id is not None:
                queries[progress.query_id] = node
        drawing.is_cut |= bool(rows) and rows[0]["total"] > len(rows)
        return queries

    async def _draw_groups(
        self, drawing: Drawing, namespaces: list[str] | None, queue: str
    ) -> None:
        rows = await self._database.fetch("map_groups", namespaces, queue, _MOST_GROUPS)
        drawing.is_cut |= len(rows) == _MOST_GROUPS
        for row in rows:
            key = str(row["id"])
            if f"group:{key}" in drawing.nodes:
                continue
            if row["reads_by_time"] and f"pipeline:{row['group_name']}" in drawing.nodes:
                # The group of a pipeline is the pipeline.
                continue
            detail = {name: row[name] for name in ("queue", "pending", "paused")}
            node = drawing.node("group", key, row["group_name"], **detail)
            rate = None if row["reads_by_time"] else row["per_second"]
            drawing.edge(drawing.queue(row["queue"]), node, "reads", rate)

    async def _draw_streams(self, drawing: Drawing, namespaces: list[str] | None) -> None:
        rows = await self._database.fetch("map_streams", namespaces, _MOST_DEFINED)
        drawing.is_cut |= len(rows) == _MOST_DEFINED
        for row in rows:
            node = drawing.node("stream", row["name"], row["name"])
            for source in row["sources"]:
                drawing.edge(drawing.queue(source), node, "reads", None)

    async def _draw_flows(
        self, drawing: Drawing, namespaces: list[str] | None, queries: dict[str, str]
    ) -> None:
        rows = await self._database.fetch("map_flows", namespaces, _MOST_FLOWS)
        drawing.is_cut |= len(rows) == _MOST_FLOWS
        for row in rows:
            source = _source_of(drawing, row, queries, is_limited=namespaces is not None)
            if source is None:
                continue
            target = drawing.queue(row["target"])
            kind = _kind_of(drawing, source, target)
            drawing.edge(source, target, kind, row["per_second"])

    async def _describe_queues(self, drawing: Drawing, namespaces: list[str] | None) -> None:
        names = [node.name for node in drawing.nodes.values() if node.kind == "queue"]
        rows = await self._database.fetch("map_queues", names)
        if namespaces is not None:
            # A definition may name queues that are not the viewer's.
            labels = {name: labels_of(name)[0] for name in names}
            labels |= {row["name"]: row["namespace"] for row in rows}
            drawing.hide({f"queue:{name}" for name in names if labels[name] not in namespaces})
        for row in rows:
            if f"queue:{row['name']}" not in drawing.nodes:
                continue
            detail = drawing.nodes[f"queue:{row['name']}"].detail
            detail.update(
                pending=row["pending"],
                deadLetters=row["dead_letters"],
                perSecond=round(row["per_second"], 3),
            )


def _draw_inputs(drawing: Drawing, node: str, definition: Definition, rate: float) -> None:
    inputs = [drawing.queue(name) for side in definition.reads for name in side.queues]
    for side in definition.reads:
        if side.pattern is not None:
            inputs.append(drawing.node("pattern", side.pattern, side.pattern))
    for source in inputs:
        # Of several queues only the sum is known.
        drawing.edge(source, node, "reads", rate if len(inputs) == 1 else None)


def _draw_outputs(drawing: Drawing, node: str, definition: Definition) -> None:
    output = definition.output
    outputs = (
        ("writes", output.queue),
        ("late", definition.late_to),
        ("errors", definition.errors_to),
    )
    for kind, queue in outputs:
        if queue is not None:
            drawing.edge(node, drawing.queue(queue), kind, None)


def _source_of(
    drawing: Drawing, row: Record, queries: dict[str, str], *, is_limited: bool
) -> str | None:
    """Return the node that a flow comes from; None when it is not the viewer's to see."""
    if row["kind"] == "group":
        queue = drawing.queue(row["source"])
        key = row["group_id"]
        node = drawing.node("group", str(key or f"?{row['source']}/{row['via']}"), row["via"])
        node_edges = (queue, node, "reads")
        if node_edges not in drawing.edges:
            drawing.edge(*node_edges, None)
        return node
    if row["kind"] == "stream":
        return drawing.node("stream", row["source"], row["source"])
    if row["via"] in queries:
        return queries[row["via"]]
    # Whose query it is nobody knows.
    return None if is_limited else drawing.node("query", row["via"], row["via"])


def _kind_of(drawing: Drawing, source: str, target: str) -> str:
    for kind in ("late", "errors"):
        if (source, target, kind) in drawing.edges:
            return kind
    return "writes"
