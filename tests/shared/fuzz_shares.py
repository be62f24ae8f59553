"""How many of all fuzz inputs each parser gets: those that are quick have more, and none has few."""

from __future__ import annotations

from attack_figures import INPUTS

PERCENT = {
    "DHCP": 9,
    "DHCPv6": 5,
    "router solicitations": 3,
    "TFTP": 10,
    "DNS": 21,
    "metadata": 14,
    "netboot": 5,
    "TLS before the handshake": 3,
    "API before the gate": 3,
    "API with a certificate": 4,
    "guest agent": 7,
    "commands in guests": 3,
    "console": 7,
    "monitor": 6,
}
assert sum(PERCENT.values()) == 100

TIMEOUT_S = 120 + 60 * INPUTS / 100_000
"""For one of them, with a machine that has other things to do."""


def inputs_of(parser: str) -> int:
    return max(16, INPUTS * PERCENT[parser] // 100)
