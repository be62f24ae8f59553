from __future__ import annotations

from atoll.serving.health import BOUNDS_S, Health
from atoll.serving.supervisor import Supervisor


def test_lags_are_counted_in_the_bucket_that_holds_them_and_in_all_above():
    health = Health(Supervisor())
    for late_s in (0.0, 0.001, 0.0011, 0.03, 7.0):
        health.note(late_s)
    lag = next(iter(health.families()))
    buckets = {sample.labels["le"]: sample.value for sample in lag.samples if sample.name.endswith("_bucket")}
    assert [buckets[str(bound)] for bound in BOUNDS_S[:2]] == [2, 3]
    assert buckets["0.02"] == 3
    assert buckets["0.05"] == buckets["5.0"] == 4
    assert buckets["+Inf"] == 5
