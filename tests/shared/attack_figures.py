"""What the attack tests counted, for docs/attacks.md: a line for each part, in the file that ATOLL_ATTACKS names."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitals import Vitals

REPORT = os.environ.get("ATOLL_ATTACKS")
FEW_INPUTS = 100_000
INPUTS = int(os.environ.get("ATOLL_ATTACK_INPUTS") or FEW_INPUTS)
"""How many inputs the fuzz tests send, all of them together."""
SOAK_S = float(os.environ.get("ATOLL_ATTACK_SOAK_S") or 60)
"""How long the soak goes on."""


def tell(part: str, **figures: float | str) -> None:
    """Note what was seen. Call it when all of the part held."""
    if REPORT:
        with open(REPORT, "a", encoding="utf-8") as report:
            report.write(json.dumps({"part": part, **figures}) + "\n")


def tell_fuzz(
    parser: str, *, inputs: int, answered: int, before: Vitals, after: Vitals, seconds: float
) -> None:
    """Note what a parser was sent, how much of it got an answer, and the memory of who reads it, before and after."""
    tell(
        f"fuzz: {parser}",
        inputs=inputs,
        answered=answered,
        memory_before_mib=round(before.resident_mib, 1),
        memory_after_mib=round(after.resident_mib, 1),
        seconds=round(seconds, 1),
    )
