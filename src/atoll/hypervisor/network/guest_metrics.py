"""What the servers for guests count, as metrics; those of DNS are in `dns_metrics`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from prometheus_client.metrics_core import CounterMetricFamily, Metric

_FRAMES = ("dhcp", "dhcp6", "ra")
_RESULTS_OF_FRAMES = ("answered", "silent", "strangers", "malformed", "excess", "unsent")
_TFTP = "tftp"
_RESULTS_OF_PACKETS = ("started", "refused", "strangers", "malformed", "excess", "repeated")
_RESULTS_OF_TRANSFERS = ("done", "unfinished")
_HTTP = ("metadata", "boot")
_COUNTED_OF_HTTP = ("connections", "refused", "expired", "requests", "malformed")


def families(served: Mapping[str, Mapping[str, Struct]]) -> Iterator[Metric]:
    """For Prometheus. `served` is what each server of each bridge counts, by bridge and by the server's name."""
    yield _family(
        "atoll_guest_frames",
        "Frames that guests sent to a server, by what became of them.",
        served,
        _FRAMES,
        _RESULTS_OF_FRAMES,
    )
    yield _family(
        "atoll_guest_tftp_packets",
        "Packets that guests sent to the port of TFTP, by what became of them.",
        served,
        (_TFTP,),
        _RESULTS_OF_PACKETS,
    )
    yield _family(
        "atoll_guest_tftp_transfers",
        "Files that guests asked for by TFTP, by how it ended.",
        served,
        (_TFTP,),
        _RESULTS_OF_TRANSFERS,
    )
    yield _family(
        "atoll_guest_http",
        "Connections and requests of guests over HTTP, and what was wrong with them.",
        served,
        _HTTP,
        _COUNTED_OF_HTTP,
    )


def _family(
    name: str,
    text: str,
    served: Mapping[str, Mapping[str, Struct]],
    servers: tuple[str, ...],
    results: tuple[str, ...],
) -> Metric:
    family = CounterMetricFamily(name, text, labels=("bridge", "server", "result"))
    for bridge, counted in sorted(served.items()):
        for server in servers:
            for result in results if server in counted else ():
                family.add_metric((bridge, server, result), getattr(counted[server], result))
    return family
