"""The commands on a page of docs/, and what the page says that they print. Pure, but for reading the page.

They stand in blocks that begin with ```console. A line with `$ ` is a command; one that ends with `# refused` fails.
Lines below it are from its output: each must be there, in this order, with any blanks; `…` stands for anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
REFUSED = "# refused"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    command: str
    refused: bool
    shown: tuple[str, ...]


def steps_of(page: str) -> list[Step]:
    """All commands of a page, in order."""
    steps: list[Step] = []
    for block in _BLOCK.findall(page):
        for line in block.splitlines():
            if line.startswith("$ "):
                command = line[2:].rstrip()
                refused = command.endswith(REFUSED)
                steps.append(Step(command.removesuffix(REFUSED).rstrip(), refused, ()))
            elif line.strip():
                last = steps[-1]
                steps[-1] = Step(last.command, last.refused, (*last.shown, line))
    return steps


def missing(step: Step, output: str) -> str:
    """The first line that the page shows and the output does not have; empty: all are there."""
    rest = iter(output.splitlines())
    for line in step.shown:
        words = [".*" if word == "…" else re.escape(word).replace("…", ".*") for word in line.split()]
        wanted = re.compile(r"\s*" + r"\s+".join(words) + r"\s*")
        if not any(wanted.fullmatch(found) for found in rest):
            return line
    return ""
