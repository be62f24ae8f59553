from __future__ import annotations

from msgspec import structs

from atoll.guestnet.dns import forward, server
from atoll.hypervisor.network.dns_metrics import families

SERVED = server.Counters(21, answered=1, forwarded=2, refused=3, strangers=4, malformed=5, excess=6)
FORWARDED = forward.Counters(10, cached=1, joined=2, excess=3, asked=4, answered=1, failed=3)


def samples(*given: object) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(*given)
        for sample in family.samples
    }


def test_every_question_of_a_guest_is_in_one_result_of_its_bridge():
    seen = samples({"br-lan": SERVED, "br-other": server.Counters()})
    assert seen["atoll_dns_questions_total", "br-lan", "strangers"] == 4
    assert seen["atoll_dns_questions_total", "br-other", "answered"] == 0
    assert sum(count for (_, bridge, _), count in seen.items() if bridge == "br-lan") == SERVED.received


def test_every_forwarded_question_is_in_one_result_and_those_that_were_asked_in_another():
    seen = samples({}, FORWARDED)
    of = {
        name: sum(count for (found, _), count in seen.items() if found == f"atoll_dns_{name}_total")
        for name in ("forwarded", "asked")
    }
    assert of == {"forwarded": FORWARDED.received, "asked": FORWARDED.asked}


def test_all_that_is_counted_is_told():
    told = {key[-1] for key in samples({"br-lan": SERVED}, FORWARDED)}
    counted = {*structs.asdict(SERVED), *structs.asdict(FORWARDED)} - {"received"}
    assert told == counted


def test_where_nobody_else_is_asked_nothing_is_said_of_it():
    assert {name for name, *_ in samples({"br-lan": SERVED})} == {"atoll_dns_questions_total"}
