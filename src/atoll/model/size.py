"""Sizes and amounts as people write them: 128MiB, 2GiB, 0.5 CPUs. Pure."""

from __future__ import annotations

import re

from atoll.errors import Invalid

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(field: str, text: str) -> int:
    """Bytes of '128MiB', '2G' or '4096'."""
    match = re.fullmatch(r"(\d{1,15})(\.\d{1,6})?\s?([KMGT]i?B?|B?)", text.strip())
    unit = match.group(3) if match else ""
    if match is None or (unit.endswith("B") and unit not in _UNITS):
        raise Invalid(
            field, text, "is not a size", hint="write a number with KiB, MiB, GiB or TiB, such as 128MiB"
        )
    amount = int(match.group(1)) * _UNITS[unit]
    fraction = match.group(2)
    return amount + (int(float(fraction) * _UNITS[unit]) if fraction else 0)


def parse_mib(field: str, text: str) -> int:
    """Whole MiB of a size; a bare number counts as MiB."""
    if text.strip().isdecimal():
        return int(text)
    size = parse_bytes(field, text)
    if size % (1 << 20):
        raise Invalid(field, text, "is not a whole number of MiB")
    return size >> 20


def parse_milli_cpus(field: str, text: str) -> int:
    """Thousandths of a CPU of '0.5', '2' or '250m'."""
    if match := re.fullmatch(r"(\d{1,7})m", text.strip()):
        return int(match.group(1))
    if match := re.fullmatch(r"(\d{1,4})(?:\.(\d{1,3}))?", text.strip()):
        return int(match.group(1)) * 1000 + int((match.group(2) or "").ljust(3, "0"))
    raise Invalid(field, text, "is not a number of CPUs", hint="write 2, 0.5 or 250m (thousandths)")


def show_mib(mib: int) -> str:
    """Shortest exact form: 128 MiB, 2 GiB."""
    for unit, factor in (("TiB", 1 << 20), ("GiB", 1 << 10)):
        if mib and mib % factor == 0:
            return f"{mib // factor} {unit}"
    return f"{mib} MiB"
