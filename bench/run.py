"""Runs the cases that are named, or all of them: `bench/run.py [CASE…]`.

Effects: those of the cases; writes results/<case>.json, then RESULTS.md from all results that there are.
"""

from __future__ import annotations

import compileall
import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import report
from measuring import Result, facts, now, say

import atoll

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CASES = ("cold_create", "fork", "kinds", "hands", "cli_start", "api_reads", "restart", "crowd", "ports")
"""Each is a module with a TITLE and a function `measure()`."""


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        print(f"no such case: {', '.join(unknown)}; there are: {', '.join(CASES)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("the bench makes namespaces and a cloud: run it as root", file=sys.stderr)
        return 5
    # As an installed package is; else a command would be compiled anew each time that it is run.
    compileall.compile_dir(Path(atoll.__file__).parent, quiet=1)
    # So that the cases clean up after themselves when they are told to end, as they do on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in names or CASES:
            keep(run(name))
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        # It has said why.
        print(
            f"bench: {shlex.join(map(str, error.cmd))} ended with status {error.returncode}", file=sys.stderr
        )
        return 1
    print(report.render(load()))
    return 0


def run(name: str) -> Result:
    case = importlib.import_module(name)
    machine = facts()
    load = ", ".join(f"{value:.2f}" for value in machine.load_before)
    print(f"{name} (load before: {load})", file=sys.stderr, flush=True)
    began = time.monotonic()
    findings = case.measure()
    took_s = round(time.monotonic() - began, 1)
    say(f"took {took_s:g} s")
    return Result(name, case.TITLE, now(), took_s, machine, findings)


def keep(result: Result) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
    (RESULTS / f"{result.case}.json").write_bytes(text)
    (HERE / "RESULTS.md").write_text(report.render(load()))


def load() -> list[Result]:
    paths = [RESULTS / f"{case}.json" for case in CASES]
    return [msgspec.json.decode(path.read_bytes(), type=Result) for path in paths if path.exists()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
