"""Metrics of queues and of the groups that read them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.server.api.stats_rows import average, lag_of
from queen.server.metrics.queue_labels import OTHER
from queen.server.metrics.snapshot import Snapshot
from queen.service.broker import Broker
from queen.service.stats.activity import FIELDS

# Counts of each queue that has a series of its own, in the order of `FIELDS`.
QueueCounts = dict[str, tuple[int, ...]]
# The values of `_SERVER`.
ServerLabels = tuple[str, str, str]

_SERVER = ("hostname", "port", "worker")

# Field of the counters, name of the metric without prefix and unit, and what it counts.
_COUNTED = (
    ("push_requests", "push_requests", "Push requests answered"),
    ("push_messages", "push_messages", "Messages stored"),
    ("push_duplicates", "push_duplicates", "Messages pushed again and not stored"),
    ("push_bytes", "push_bytes", "Bytes of segments stored, as compressed"),
    ("pop_requests", "pop_requests", "Pops answered, with or without messages"),
    ("pop_messages", "pop_messages", "Messages delivered"),
    ("pop_empty", "pop_empty", "Pops answered without messages"),
    ("auto_acked", "auto_acked_messages", "Messages committed as they were delivered"),
    ("ack_requests", "ack_requests", "Acknowledgments decided, one for each lease and partition"),
    ("ack_ok", "ack_messages", "Messages acknowledged as completed"),
    ("ack_failed", "ack_failed_messages", "Messages given back, dead, or refused"),
    ("dead_letters", "dead_letter_messages", "Messages set aside for good"),
    (
        "transactions",
        "transactions",
        "Transactions committed, in each queue they touch",
    ),
    ("partitions_created", "partitions_created", "Partitions created"),
    ("lag_sum_ms", "pop_wait_milliseconds", "Time that delivered messages had waited, added up"),
)

# Name, what it is, and the field of a row that holds it.
_GROUP_GAUGES = (
    ("queen_group_pending_messages", "Messages the group has not done", "pending"),
    ("queen_group_leased_messages", "Messages the group has on a lease", "leased"),
    ("queen_group_partitions_behind", "Partitions with such messages", "partitions_behind"),
)
_QUEUE_GAUGES = (
    ("queen_queue_partitions", "Partitions of the queue", "partitions"),
    ("queen_queue_retained_messages", "Messages stored now", "retained"),
    ("queen_queue_outstanding_messages", "Messages some group has not done", "outstanding"),
    ("queen_queue_stored_bytes", "Bytes of segments stored now", "stored_bytes"),
    ("queen_dlq_depth", "Messages set aside for good and still kept", "dead_letters"),
)


def cluster_totals(snapshot: Snapshot) -> Iterator[Metric]:
    for field, name, about in _COUNTED:
        yield CounterMetricFamily(
            f"queen_cluster_{name}", f"{about}, by all servers", snapshot.totals[field]
        )


def last_minute(snapshot: Snapshot) -> Iterator[Metric]:
    for kind, about, field in (
        ("push", "Messages stored", "push_messages"),
        ("pop", "Messages delivered", "pop_messages"),
        ("ack", "Messages acknowledged as completed", "ack_ok"),
    ):
        family = GaugeMetricFamily(
            f"queen_queue_{kind}_per_minute",
            f"{about} in the last full minute, by all servers",
            labels=("queue",),
        )
        for row in snapshot.minute:
            family.add_metric((row["queue"],), row[field])
        yield family
    lag = GaugeMetricFamily(
        "queen_queue_pop_lag_milliseconds",
        "How long messages delivered in the last full minute had waited, on average",
        labels=("queue",),
    )
    for row in snapshot.minute:
        lag.add_metric((row["queue"],), average(row["lag_sum_ms"], row["lag_count"]))
    yield lag


def statistics(snapshot: Snapshot, most: int) -> Iterator[Metric]:
    """What is in queues and before groups, as it was last counted; `most` queues stand alone."""
    for name, about, field in _QUEUE_GAUGES:
        family = GaugeMetricFamily(name, about, labels=("queue",))
        for row in snapshot.queues[:most]:
            family.add_metric((row["name"],), row[field] or 0)
        rest = snapshot.queues[most:]
        if rest:
            family.add_metric((OTHER,), sum(row[field] or 0 for row in rest))
        yield family
    for name, about, field in _GROUP_GAUGES:
        family = GaugeMetricFamily(name, about, labels=("queue", "group"))
        for row in snapshot.groups:
            family.add_metric((row["queue"], row["group_name"]), row[field])
        yield family
    lag = GaugeMetricFamily(
        "queen_group_lag_seconds",
        "Time since the oldest message was written that the group has not done; 0 when idle",
        labels=("queue", "group"),
    )
    for row in snapshot.groups:
        lag.add_metric((row["queue"], row["group_name"]), lag_of(row, snapshot.stamp))
    yield lag
    breakers = GaugeMetricFamily(
        "queen_group_breaker_open",
        "1 for each group that its breaker holds back, because nearly everything failed",
        labels=("queue", "group"),
    )
    for row in snapshot.breakers:
        breakers.add_metric((row["queue"], row["group_name"]), 1)
    yield breakers
    yield GaugeMetricFamily(
        "queen_statistics_age_seconds", "How old the counts are", snapshot.stamp.age_s
    )


def counters(queue_counts: QueueCounts, server: ServerLabels) -> Iterator[Metric]:
    for field, name, about in _COUNTED:
        family = CounterMetricFamily(f"queen_queue_{name}", about, labels=("queue", *_SERVER))
        at = FIELDS.index(field)
        for queue, counted in queue_counts.items():
            family.add_metric((queue, *server), counted[at])
        yield family


def parked_polls(
    broker: Broker, queue_counts: QueueCounts, server: ServerLabels
) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "queen_parked_polls", "Long polls that wait", broker.popper.parked_count
    )
    family = GaugeMetricFamily(
        "queen_queue_parked_consumers",
        "Long polls that wait for a queue",
        labels=("queue", *_SERVER),
    )
    parked: dict[str, int] = {}
    for name, count in broker.popper.parked_by_name().items():
        label = name if name in queue_counts else OTHER
        parked[label] = parked.get(label, 0) + count
    for name, count in parked.items():
        family.add_metric((name, *server), count)
    yield family
