"""What a command costs before it does anything, and how it ends when its reader does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest

HEAVY = {
    "aiohttp",
    "asyncio",
    "cryptography",
    "pyroute2",
    "rich",
    "yaml",
    "uvloop",
    "threading",
    "shutil",
    "difflib",
    "dataclasses",
    "inspect",
    "typing_extensions",
}


def modules_after(cloud: Any, *argv: str) -> set[str]:
    code = (
        "import sys; from atoll.cli.main import main; status = main(sys.argv[1:]);"
        "print('\\nMODULES', status, *sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *argv], env=cloud.environment, capture_output=True, text=True, timeout=60
    )
    status, *modules = run.stdout.split("\nMODULES ")[1].split()
    assert status == "0", run.stderr
    return set(modules)


def test_the_version_needs_no_parser(cloud: Any) -> None:
    loaded = modules_after(cloud, "--version")
    assert not loaded & {"argparse", "msgspec", "re", "atoll.errors"}


def test_help_needs_no_noun(cloud: Any) -> None:
    loaded = modules_after(cloud, "--help")
    assert not loaded & {"msgspec", "atoll.cli.vm", "atoll.cli.up", "ssl"}


def test_list_needs_only_the_light_client(cloud: Any) -> None:
    cloud.node.make("web")
    loaded = modules_after(cloud, "vm", "list")
    assert "atoll.api.http1" in loaded
    assert not loaded & HEAVY
    assert not loaded & {"http.client", "email.parser", "typing_extensions"}
    assert not loaded & {
        "atoll.cli.vm_create",
        "atoll.cli.vm_change",
        "atoll.cli.vm_life",
        "atoll.cli.progress",
    }
    assert not loaded & {"atoll.cli.console", "atoll.cli.node", "atoll.cli.ca", "atoll.identity.authority"}


def test_a_reader_that_leaves_early_is_no_noise(cloud: Any) -> None:
    for number in range(200):
        cloud.node.make(f"vm{number}", tags={"filler": "x" * 250})
    process = cloud.start("vm", "list", "-o", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 141


@pytest.mark.parametrize("answer", [b"n\n", b"\n"])
def test_a_person_is_asked_before_a_vm_is_destroyed(cloud: Any, answer: bytes) -> None:
    cloud.node.make("web")
    master, slave = pty.openpty()
    process = cloud.start("vm", "destroy", "web", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(master, 1024)
    assert b"web (10.213.0.5, running): no volumes" in seen
    assert b"destroy VM web? [y/N]" in seen
    os.write(master, answer)
    assert process.wait(30) == 1
    os.close(master)
    assert len(cloud.node.vms) == 1


def test_progress_on_a_terminal_is_one_line_and_the_vm_is_on_standard_output(cloud: Any) -> None:
    master, slave = pty.openpty()
    process = cloud.start(
        "vm", "create", "--name", "web", "--image", "appliance", "-o", "json",
        stdout=subprocess.PIPE, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    out, _ = process.communicate(timeout=30)
    seen = b""
    while b"\n" not in seen:
        seen += os.read(master, 4096)
    os.close(master)
    assert process.returncode == 0
    assert out.startswith(b"{\n")
    last = seen.decode().rsplit("\r\x1b[2K", 1)[1]
    assert last.startswith("\x1b[?25hweb  \x1b[32m✓\x1b[0m ")
    assert "10.213.0.5  address 0.01 · started 0.12" in last
