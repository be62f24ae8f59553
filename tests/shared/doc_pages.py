"""The commands on a page of docs/, and what the page says that they print. Pure, but for reading the page.

They stand in blocks that begin with ```console. A line with `$ ` is a command, one with `laptop$ ` a command on another
machine; one that ends with `# refused` fails.
Lines below it are from its output: each must be there, in this order, with any blanks; `…` stands for anything.
A block of another language whose first line (or second, after `#!`) is `# NAME.EXT` is a file of that name, which
commands below it use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
REFUSED = "# refused"
LAPTOP = "laptop"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#!.*\n)?# ([\w-]+\.\w+)\n")


@dataclass(frozen=True)
class Step:
    command: str
    refused: bool
    shown: tuple[str, ...]
    elsewhere: bool = False
    """On another machine than that of the cloud."""
    file: str = ""
    """Not a command, but what is to be in the file of this name."""


def steps_of(page: str) -> list[Step]:
    """All commands of a page, in order."""
    steps: list[Step] = []
    for language, block in _BLOCK.findall(page):
        if language != "console":
            named = _FILE.match(block)
            steps += [Step(block, False, (), file=named[1])] if named else []
            continue
        for line in block.splitlines():
            prompt, dollar, command = line.partition("$ ")
            if dollar and prompt in ("", LAPTOP):
                refused = command.rstrip().endswith(REFUSED)
                plain = command.rstrip().removesuffix(REFUSED).rstrip()
                steps.append(Step(plain, refused, (), prompt == LAPTOP))
            elif line.strip():
                steps[-1] = replace(steps[-1], shown=(*steps[-1].shown, line))
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
