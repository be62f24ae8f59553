"""Sizes and amounts as people write them: 128MiB, 512M, 2g, 0.5 CPUs. Pure."""

from __future__ import annotations

import re

from atoll.errors import Invalid

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(field: str, text: str) -> int:
    """Bytes of '128MiB', '2G', '512m', '2 GB' or '4096'. All units are powers of 1024, as memory and disks are made."""
    match = re.fullmatch(
        r"([0-9]{1,15})(?:\.([0-9]{1,6}))?\s?(?:([kmgt])(?:i?b|i)?|(b|))", text.strip().lower()
    )
    if match is None:
        raise Invalid(
            field, text, "is not a size", hint="write a number with KiB, MiB, GiB or TiB, such as 128MiB"
        )
    whole, fraction, unit = int(match[1]), match[2] or "", _UNITS[match[3] or match[4]]
    return whole * unit + int(fraction.ljust(6, "0")) * unit // 1_000_000


def parse_mib(field: str, text: str) -> int:
    """Whole MiB of a size. A bare number could be anything."""
    plain = text.strip()
    if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,6})?", plain) and float(plain):
        raise Invalid(field, text, "has no unit", hint=f"write {plain}M or {plain}G")
    size = parse_bytes(field, text)
    if size % (1 << 20):
        raise Invalid(field, text, "is not a whole number of MiB")
    return size >> 20


def parse_milli_cpus(field: str, text: str) -> int:
    """Thousandths of a CPU of '0.5', '2', '1.5 cores' or '250m'."""
    plain = re.sub(r"\s?v?(cpu|core)s?$", "", text.strip().lower())
    if match := re.fullmatch(r"([0-9]{1,7})m", plain):
        return int(match.group(1))
    if match := re.fullmatch(r"([0-9]{1,4})(?:\.([0-9]{1,3}))?", plain):
        return int(match.group(1)) * 1000 + int((match.group(2) or "").ljust(3, "0"))
    raise Invalid(field, text, "is not a number of CPUs", hint="write 2, 0.5 or 250m (thousandths)")


def show_mib(mib: int) -> str:
    """Shortest exact form: 128 MiB, 2 GiB."""
    for unit, factor in (("TiB", 1 << 20), ("GiB", 1 << 10)):
        if mib and mib % factor == 0:
            return f"{mib // factor} {unit}"
    return f"{mib} MiB"


def show_bytes(size: float) -> str:
    """In its largest unit: 1.5 MiB."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"
