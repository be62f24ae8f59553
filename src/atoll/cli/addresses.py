"""Addresses as they are written on the command line, and shown. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from atoll.cli.arguments import plain_mac
from atoll.errors import Invalid
from atoll.model.checks import MAC_PATTERN, check_ip
from atoll.model.network import Address, mac_for

MAX_RANGE = 65536


def parse_addresses(words: Sequence[str]) -> tuple[Address, ...]:
    """IP, IP MAC and FIRST-LAST, mixed as they come."""
    found: dict[str, str] = {}
    last = ""
    for word in map(plain_mac, words):
        if ":" in word:
            if not last or not re.fullmatch(MAC_PATTERN, word):
                why = "must be a unicast MAC address, behind the IP that it belongs to"
                raise Invalid("mac", word, why)
            found[last], last = word, ""
            continue
        ips = parse_ips(word)
        for ip in ips:
            if ip in found:
                raise Invalid("ip", ip, "is given twice")
            found[ip] = mac_for(ip)
        last = ips[0] if len(ips) == 1 else ""
    return tuple(Address(ip=ip, mac=mac) for ip, mac in found.items())


def parse_ips(word: str) -> list[str]:
    """IP or FIRST-LAST."""
    first, dash, last = word.partition("-")
    low = int(ipaddress.IPv4Address(check_ip("ip", first)))
    high = int(ipaddress.IPv4Address(check_ip("ip", last))) if dash else low
    if not low <= high < low + MAX_RANGE:
        raise Invalid("ip", word, f"must go upwards, over at most {MAX_RANGE} addresses")
    return [str(ipaddress.IPv4Address(number)) for number in range(low, high + 1)]


def show_ranges(ips: Iterable[str]) -> str:
    """Those that follow each other as FIRST-LAST: 10.2.0.2-10.2.0.254, 10.2.1.7."""
    runs: list[list[int]] = []
    for number in sorted(int(ipaddress.IPv4Address(ip)) for ip in ips):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ([str(ipaddress.IPv4Address(end)) for end in run] for run in runs)
    return ", ".join(first if first == last else f"{first}-{last}" for first, last in shown) or "-"
