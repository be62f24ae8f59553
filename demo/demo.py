"""A one-node cloud and two VMs that answer: what a newcomer would type, and a check that it is true.

Runs the `atoll` command as a person would; then asks each VM over the network who it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ATOLL = Path(sys.executable).with_name("atoll")
NAMES = ("reef", "lagoon")
BOLD, DIM, GREEN, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m") if sys.stdout.isatty() else ("",) * 4


def main() -> int:
    began = time.monotonic()
    show("atoll up")
    run("up")
    # A demo that was run before left its VMs running.
    run("vm", "destroy", "--yes", "-q", *NAMES, quiet=True)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda name: create(name, Path(directory)), NAMES))
    print()
    show("atoll vm list")
    run("vm", "list")
    print(f"\n{'VM':8} {'address':15} {'DHCP':>8} {'metadata':>9} {'answered':>9}   what it said of itself")
    for vm, answer in answers:
        ready = vm["ready"]
        print(
            f"{vm['name']:8} {vm['ip']:15} {ready['dhcp']:7.2f}s {ready['metadata']:8.2f}s {ready['port:80']:8.2f}s   "
            f"{GREEN}{answer['hostname']} at {answer['ip']}, user data {answer['user_data_sha256'][:12]}…{PLAIN}"
        )
    print(f"\n{BOLD}All of it took {time.monotonic() - began:.1f} s. What to try next:{PLAIN}\n")
    print(NEXT.format(atoll=shortest(ATOLL), ip=answers[0][0]["ip"], where=directory_option()))
    return 0


def create(name: str, directory: Path) -> tuple[dict, dict]:
    script = directory / f"{name}.sh"
    script.write_text(f"#!/bin/sh\necho 'hello from {name}' > /dev/console\n")
    options = ("--image", "appliance", "--memory", "128MiB", "--cpus", "0.5", "--user-data", str(script))
    show(f"atoll vm create --name {name} {' '.join(options[:-1])} {name}.sh")
    vm = json.loads(run("vm", "create", "--name", name, *options, "-o", "json", capture=True))
    answer = json.load(urllib.request.urlopen(f"http://{vm['ip']}/", timeout=10))
    expected = {
        "hostname": name,
        "ip": vm["ip"],
        "mac": vm["mac"],
        "user_data_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
    }
    wrong = {key: answer.get(key) for key, value in expected.items() if answer.get(key) != value}
    if wrong:
        raise SystemExit(f"{name} is not what was asked for: {wrong} instead of {expected}")
    return vm, answer


def run(*words: str, capture: bool = False, quiet: bool = False) -> str:
    sink = subprocess.PIPE if capture else subprocess.DEVNULL if quiet else None
    done = subprocess.run(
        [ATOLL, *words], stdout=sink, stderr=subprocess.DEVNULL if quiet else None, text=True
    )
    if done.returncode and not quiet:
        raise SystemExit(done.returncode)
    return done.stdout or ""


def show(command: str) -> None:
    print(f"{DIM}${PLAIN} {BOLD}{command}{PLAIN}", flush=True)


def shortest(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def directory_option() -> str:
    directory = os.environ.get("ATOLL_DIR", "/var/lib/atoll")
    return "" if directory == "/var/lib/atoll" else f"export ATOLL_DIR={directory}\n  "


NEXT = """  {where}curl http://{ip}/                   ask the VM again
  {atoll} vm list                       what runs
  {atoll} vm console reef               its serial console (Enter for a shell, Ctrl-] leaves)
  {atoll} vm stop reef                  ask it to shut down
  {atoll} vm create --name atoll1 --image appliance
  {atoll} node show                     what the node has, and how it confines VMs
  make demo-down                              remove everything again
"""

if __name__ == "__main__":
    sys.exit(main())
