"""docs/attacks.md from a run of the attack tests. Pure: `page.py RESULTS.xml FIGURES.jsonl` prints it.

`make attack` runs the tests, and writes the page when all of them held.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

TEXT = """# Attacks

Written by `make attack` from what the tests saw; do not edit. What is promised, and against whom, is in [SECURITY.md](../SECURITY.md).

Each attack below is a test that plays it against a real agent, most of them from a real guest or from a network namespace in a guest's place, and holds it to what its name says.
One that gets through fails the run, and then this page is not written.

## Tried, and held

{tried}

## Fuzz

Seeded inputs, forged from what each parser expects, sent to a real agent by the way that a guest or caller has, or to the parser's own socket. The same process lives on, answers others meanwhile,
logs no fault, and has its memory, descriptors and threads back. Crashes: none; the first one fails the run.

{fuzz}

## Soak

{soak}
"""


def page(cases: list[tuple[str, str]], figures: list[dict[str, Any]], root: Path) -> str:
    """The page. `cases`: the file and the name of each test that held; `root` is where the files are."""
    counts: dict[str, Counter[str]] = {}
    for file, name in cases:
        counts.setdefault(file, Counter())[name.partition("[")[0]] += 1
    fuzz = [one for one in figures if one["part"].startswith("fuzz: ")]
    soaks = [one for one in figures if one["part"] == "soak"]
    return TEXT.format(
        tried="\n\n".join(_tried(file, counts[file], root) for file in counts),
        fuzz=_fuzz(fuzz),
        soak="\n\n".join(_soak(one) for one in soaks),
    )


def _tried(file: str, names: Counter[str], root: Path) -> str:
    about = ast.get_docstring(ast.parse((root / file).read_text(encoding="utf-8"))) or ""
    claims = [
        f"- {_sentence(name)}{f' ({count} ways)' if count > 1 else ''}" for name, count in names.items()
    ]
    return "\n".join((f"**{about.partition(chr(10))[0]}** `{file}`", "", *claims))


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _fuzz(rows: list[dict[str, Any]]) -> str:
    total = sum(row["inputs"] for row in rows)
    return _table(
        ("parser", "inputs", "memory before, MiB", "after, MiB", "seconds"),
        *(
            (
                row["part"].removeprefix("fuzz: "),
                f"{row['inputs']:,}",
                f"{row['memory_before_mib']:.1f}",
                f"{row['memory_after_mib']:.1f}",
                f"{row['seconds']:.0f}",
            )
            for row in rows
        ),
        ("all", f"{total:,}", "", "", f"{sum(row['seconds'] for row in rows):.0f}"),
    )


def _soak(row: dict[str, Any]) -> str:
    seen = ((name.replace("_", " "), _figure(value)) for name, value in row.items() if name != "part")
    return _table(("", "seen"), *seen)


def _figure(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _table(head: tuple[Any, ...], *rows: tuple[Any, ...]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def held(results: Path) -> list[tuple[str, str]]:
    """The file and the name of each test in pytest's report, in their order."""
    cases = ElementTree.parse(results).getroot().iter("testcase")
    return [
        (case.attrib["classname"].replace(".", "/") + ".py", case.attrib["name"])
        for case in cases
        if not len(case)
    ]


if __name__ == "__main__":
    lines = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
    sys.stdout.write(page(held(Path(sys.argv[1])), [json.loads(line) for line in lines], Path.cwd()))
