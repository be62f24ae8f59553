"""Runs the demo in a terminal and draws what it printed as docs/demo.svg: the README's picture is never by hand."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 118


def main() -> int:
    os.environ["COLUMNS"] = str(WIDTH)
    output = bytearray()

    def keep(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        output.extend(data)
        return data

    status = pty.spawn([sys.executable, str(HERE / "demo.py")], keep)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(settled(output.decode(errors="replace"))))
    (HERE.parent / "docs" / "demo.svg").write_text(console.export_svg(title="make demo"))
    return os.waitstatus_to_exitcode(status)


def settled(text: str) -> str:
    """What stays on the screen: a live line is drawn over itself, its last state remains."""
    text = re.sub(r"\x1b\[\?25[lh]", "", text).replace("\r\n", "\n")
    lines = [line.split("\r")[-1] for line in text.split("\n")]
    return "\n".join(re.sub(r"\x1b\[[0-9]*[KJA]", "", line) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
