from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from atoll.cli.vm_top import rates, show_rate
from atoll.model.utilisation import Usage, Utilisation, VmUsage

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


def look(after_s: float, node: Usage, **vms: Usage) -> Utilisation:
    seen = tuple(
        VmUsage(f"10.0.0.{index}", name, "running", usage)
        for index, (name, usage) in enumerate(vms.items(), 5)
    )
    return Utilisation(NOW + timedelta(seconds=after_s), 2, 4096, node, seen)


def test_rates_are_what_was_used_between_two_looks_a_second():
    first = look(0, Usage(cpu_s=100), web=Usage(cpu_s=10, sent_bytes=1000, memory_mib=50))
    second = look(2, Usage(cpu_s=103), web=Usage(cpu_s=10.5, sent_bytes=5000, memory_mib=70))
    node, web = rates(first, second)
    assert (node.name, node.cpus) == ("(node)", 1.5)
    assert (web.name, web.cpus, web.sent_bytes_per_s, web.memory_mib) == ("web", 0.25, 2000, 70)


def test_one_that_has_just_come_or_was_started_again_used_nothing_yet():
    first = look(0, Usage(), old=Usage(cpu_s=10))
    second = look(1, Usage(), old=Usage(cpu_s=0.5), new=Usage(cpu_s=3))
    assert [one.cpus for one in rates(first, second)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0 B/s"), (1023, "1023 B/s"), (1536, "1.5 KiB/s"), (3 << 20, "3.0 MiB/s")]
)
def test_a_rate_is_shown_in_its_largest_unit(amount: float, text: str):
    assert show_rate(amount) == text
