"""What the attack tests counted, for docs/attacks.md: a line for each part, in the file that ATOLL_ATTACKS names."""

from __future__ import annotations

import json
import os

REPORT = os.environ.get("ATOLL_ATTACKS")
INPUTS = int(os.environ.get("ATOLL_ATTACK_INPUTS") or 100_000)
"""How many inputs the fuzz tests send, all of them together."""
SOAK_S = float(os.environ.get("ATOLL_ATTACK_SOAK_S") or 60)
"""How long the soak goes on."""


def tell(part: str, **figures: float | str) -> None:
    """Note what was seen. Call it when all of the part held."""
    if REPORT:
        with open(REPORT, "a", encoding="utf-8") as report:
            report.write(json.dumps({"part": part, **figures}) + "\n")
