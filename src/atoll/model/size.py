"""Sizes and amounts as people write them: 128MiB, 2GiB, 0.5 CPUs. Pure."""

from __future__ import annotations

import re

from atoll.errors import Invalid

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(field: str, text: str) -> int:
    """Bytes of '128MiB', '2G' or '4096'."""
    match = re.fullmatch(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?\s?([KMGT]iB|[KMGTB]|)", text.strip())
    if match is None:
        raise Invalid(
            field, text, "is not a size", hint="write a number with KiB, MiB, GiB or TiB, such as 128MiB"
        )
    whole, fraction, unit = int(match.group(1)), match.group(2) or "", _UNITS[match.group(3)]
    return whole * unit + int(fraction.ljust(6, "0")) * unit // 1_000_000


def parse_mib(field: str, text: str) -> int:
    """Whole MiB of a size; a bare number counts as MiB."""
    bare = re.fullmatch(r"[0-9]{1,15}", text.strip())
    size = parse_bytes(field, f"{text}MiB" if bare else text)
    if size % (1 << 20):
        raise Invalid(field, text, "is not a whole number of MiB")
    return size >> 20


def parse_milli_cpus(field: str, text: str) -> int:
    """Thousandths of a CPU of '0.5', '2' or '250m'."""
    if match := re.fullmatch(r"([0-9]{1,7})m", text.strip()):
        return int(match.group(1))
    if match := re.fullmatch(r"([0-9]{1,4})(?:\.([0-9]{1,3}))?", text.strip()):
        return int(match.group(1)) * 1000 + int((match.group(2) or "").ljust(3, "0"))
    raise Invalid(field, text, "is not a number of CPUs", hint="write 2, 0.5 or 250m (thousandths)")


def show_mib(mib: int) -> str:
    """Shortest exact form: 128 MiB, 2 GiB."""
    for unit, factor in (("TiB", 1 << 20), ("GiB", 1 << 10)):
        if mib and mib % factor == 0:
            return f"{mib // factor} {unit}"
    return f"{mib} MiB"
