"""How a service itself is doing: how late its loop is, what failed in the background, when its certificate ends.


Effects: wakes up a hundred times a second, to see how late that is.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from atoll.identity.tls import ServerCertificate
from atoll.serving.supervisor import Supervisor

LOOK_EVERY_S = 0.01
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Health:
    def __init__(self, background: Supervisor, certificate: ServerCertificate | None = None) -> None:
        """`certificate`: what the service serves with."""
        self._background = background
        self._certificate = certificate
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    async def watch(self) -> None:
        """For ever: note how late the loop is. Whatever keeps it from us keeps it from everybody."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(LOOK_EVERY_S)
            self.note(max(0.0, loop.time() - began - LOOK_EVERY_S))

    def note(self, late_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self._sum_s += late_s

    def families(self) -> Iterator[Metric]:
        """For Prometheus."""
        buckets, so_far = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        lag = HistogramMetricFamily("atoll_loop_lag_seconds", "How late the event loop is.")
        lag.add_metric((), buckets, self._sum_s)
        yield lag
        failures = CounterMetricFamily(
            "atoll_background_failures", "Background work that failed and was begun again.", labels=("work",)
        )
        for work, count in sorted(self._background.failures.items()):
            failures.add_metric((work,), count)
        yield failures
        if self._certificate is not None:
            yield GaugeMetricFamily(
                "atoll_certificate_end_timestamp_seconds",
                "When the certificate that the service serves with ends.",
                value=self._certificate.validity.not_after.timestamp(),
            )
