"""What the DNS servers of a node count, as metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from atoll.guestnet.dns import forward, server

_OF_GUESTS = ("answered", "forwarded", "refused", "strangers", "malformed", "excess")
_FORWARDED = ("cached", "joined", "excess", "asked")
_ASKED = ("answered", "failed")


def families(
    served: Mapping[str, server.Counters], forwarded: forward.Counters | None = None
) -> Iterator[Metric]:
    """For Prometheus. `served` is by bridge; `forwarded`, where other servers are asked, is of all guests."""
    questions = CounterMetricFamily(
        "atoll_dns_questions", "Questions of guests, by what became of them.", labels=("bridge", "result")
    )
    for bridge, counters in sorted(served.items()):
        for result in _OF_GUESTS:
            questions.add_metric((bridge, result), getattr(counters, result))
    yield questions
    if forwarded is not None:
        yield _by_result(
            "forwarded",
            "Questions that only others can answer, by where the reply is from.",
            forwarded,
            _FORWARDED,
        )
        yield _by_result("asked", "Questions to other servers, by what became of them.", forwarded, _ASKED)


def _by_result(name: str, text: str, counters: forward.Counters, results: tuple[str, ...]) -> Metric:
    family = CounterMetricFamily(f"atoll_dns_{name}", text, labels=("result",))
    for result in results:
        family.add_metric((result,), getattr(counters, result))
    return family
