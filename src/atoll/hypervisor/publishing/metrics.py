"""What was carried to published ports, as metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from atoll.model.publishing import PublishedPort
from atoll.model.vm import VM

_LABELS = ("ip", "name", "address", "port")


def families(published: Iterable[tuple[VM, PublishedPort]]) -> Iterator[Metric]:
    """For Prometheus. They begin anew with the publisher, as counters may."""
    connections = CounterMetricFamily(
        "atoll_published_connections",
        "Connections to published ports, by what became of them.",
        labels=(*_LABELS, "result"),
    )
    moved = CounterMetricFamily(
        "atoll_published_bytes",
        "Bytes carried from clients to guests (received) and back (sent).",
        labels=(*_LABELS, "direction"),
    )
    live = GaugeMetricFamily(
        "atoll_published_open_connections", "Connections to published ports at this moment.", labels=_LABELS
    )
    for vm, port in published:
        labels = (vm.ip, vm.name, port.publication.address, str(port.publication.port))
        for result, count in (
            ("taken", port.connections),
            ("refused", port.refused),
            ("failed", port.failed),
        ):
            connections.add_metric((*labels, result), count)
        moved.add_metric((*labels, "received"), port.received_bytes)
        moved.add_metric((*labels, "sent"), port.sent_bytes)
        live.add_metric(labels, port.open)
    yield from (connections, moved, live)
