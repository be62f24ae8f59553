"""One VM from the command line to the guest: what it is told, what it says, how it ends."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.host.conftest import Cli

CONTRACT = {
    "ip", "mac", "name", "state", "driver", "image", "memory_mib", "milli_cpus", "owner_users", "tags",
    "created_at", "ready",
}  # fmt: skip
STAGES = ["address", "volume", "started", "dhcp", "metadata", "port:80"]


@pytest.fixture(scope="module")
def pair(cloud: Cli) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Two VMs that were created at the same moment, of two machine types."""
    commands = [
        cloud.start(
            "vm", "create", "--name", f"pair-{kind}", "--image", "appliance", "--machine-type", kind,
            stdout=subprocess.PIPE,
        )
        for kind in ("q35", "microvm")
    ]  # fmt: skip
    for command in commands:
        out, _ = command.communicate(timeout=120)
        assert command.returncode == 0, out
    yield cloud.show("pair-q35"), cloud.show("pair-microvm")
    cloud.destroy("pair-q35", "pair-microvm")


def test_a_vm_answers_with_its_own_name_address_and_user_data(cloud: Cli, booted: dict[str, Any]) -> None:
    said = cloud.ask(booted["ip"])
    assert said["hostname"] == booted["name"] == "booted"
    assert said["ip"] == booted["ip"]
    assert said["mac"] == booted["mac"]
    assert said["instance_id"] == booted["instance_id"]
    user_data = cloud("vm", "user-data", "booted").stdout.encode()
    assert said["user_data_sha256"] == booted["user_data_sha256"] == hashlib.sha256(user_data).hexdigest()


def test_a_create_prints_what_the_contract_promises(booted: dict[str, Any]) -> None:
    assert booted.keys() >= CONTRACT
    assert (booted["state"], booted["driver"], booted["image"]) == ("running", "qemu", "appliance")
    assert (booted["memory_mib"], booted["milli_cpus"]) == (128, 250)
    assert (booted["owner_users"], booted["tags"]) == (["admin"], {"tier": "front"})


def test_a_vm_reaches_its_stages_one_after_the_other(booted: dict[str, Any]) -> None:
    assert sorted(booted["ready"], key=booted["ready"].__getitem__) == STAGES
    assert booted["ready"]["address"] > 0


def test_a_script_in_the_user_data_runs(cloud: Cli, booted: dict[str, Any]) -> None:
    assert cloud.until_script(booted["ip"]) == 42
    assert "the script ran on booted" in cloud("vm", "log", "booted").stdout


@pytest.mark.parametrize("option", ["--imdsv2-required", "--no-imdsv2-required", None])
def test_a_guest_gets_its_user_data_whether_metadata_needs_tokens_or_not(
    cloud: Cli, tmp_path: Path, option: str | None
) -> None:
    (tmp_path / "user-data").write_bytes(b"for holders only\n")
    options = [option] if option else []
    vm = cloud.create("careful", *options, "--user-data", str(tmp_path / "user-data"))
    try:
        assert vm["imdsv2_required"] == (option != "--no-imdsv2-required")
        said = cloud.ask(vm["ip"])
        assert said["user_data_sha256"] == vm["user_data_sha256"]
        assert said["user_data_sha256"] == hashlib.sha256(b"for holders only\n").hexdigest()
        assert said["instance_id"] == vm["instance_id"]
    finally:
        cloud.destroy("careful")


def test_two_creates_at_once_get_addresses_of_their_own(
    cloud: Cli, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    one, other = pair
    assert one["ip"] != other["ip"]
    assert one["mac"] != other["mac"]
    assert cloud.ask(one["ip"])["hostname"] == "pair-q35"
    assert cloud.ask(other["ip"])["hostname"] == "pair-microvm"


def test_list_shows_every_vm_and_show_finds_one_by_name_and_by_ip(
    cloud: Cli, booted: dict[str, Any], pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    listed = {vm["name"]: vm for vm in cloud.json("vm", "list")}
    assert listed.keys() >= {"booted", "pair-q35", "pair-microvm"}
    assert listed["booted"] == cloud.show("booted") == cloud.show(booted["ip"])
    assert listed["booted"].keys() == booted.keys()
    assert cloud("vm", "list", "-o", "name").stdout.split() == list(listed)


def test_the_same_request_again_gives_the_same_vm(cloud: Cli) -> None:
    first = cloud.create("once", "--request-id", "r-1", "--wait-for", "started")
    try:
        again = cloud.create("once", "--request-id", "r-1", "--wait-for", "started")
        assert (again["ip"], again["instance_id"]) == (first["ip"], first["instance_id"])
    finally:
        cloud.destroy("once")


@pytest.mark.parametrize("kind", ["q35", "microvm"])
def test_a_stop_powers_the_guest_down_and_a_start_brings_it_back_on_its_address(
    cloud: Cli, pair: tuple[dict[str, Any], dict[str, Any]], kind: str
) -> None:
    vm = next(vm for vm in pair if vm["machine_type"] == kind)
    boot = cloud.ask(vm["ip"])["boot_id"]
    # By ACPI, and so long before the grace is over: ended by force, it would say so.
    stopped = cloud.json("vm", "stop", vm["ip"], "--grace", "60s")
    assert (stopped["state"], stopped["reason"]) == ("stopped", "")
    assert "powering off" in cloud("vm", "log", vm["name"]).stdout
    assert not cloud.answers(vm["ip"])
    started = cloud.json("vm", "start", vm["name"], "--wait-for", "port:80")
    assert (started["state"], started["ip"], started["mac"]) == ("running", vm["ip"], vm["mac"])
    assert cloud.ask(vm["ip"])["boot_id"] != boot


def test_a_reboot_is_another_boot_of_the_same_vm(cloud: Cli, running: dict[str, Any]) -> None:
    before = cloud.ask(running["ip"])
    cloud("vm", "reboot", running["ip"], "--wait-for", "port:80")
    after = cloud.ask(running["ip"])
    assert after["boot_id"] != before["boot_id"]
    assert after["instance_id"] == before["instance_id"]


def test_a_guest_that_does_not_listen_is_ended_after_the_grace(cloud: Cli, running: dict[str, Any]) -> None:
    with cloud.shell(running["name"]) as shell:
        shell.run("rmmod button")
    stopped = cloud.json("vm", "stop", running["name"], "--grace", "1s")
    assert (stopped["state"], stopped["reason"]) == ("stopped", "ended by force after 1 s")


def test_a_guest_that_powers_itself_off_is_stopped(cloud: Cli, running: dict[str, Any]) -> None:
    with cloud.shell(running["name"]) as shell:
        shell.begin("poweroff -f")
        stopped = cloud.until(running["name"], "stopped")
    assert stopped["reason"] == "the guest powered off"


def test_a_machine_that_is_killed_is_crashed(cloud: Cli, running: dict[str, Any]) -> None:
    os.kill(cloud.qemu(running["ip"]), signal.SIGKILL)
    assert cloud.until(running["name"], "crashed")["reason"] == "the machine ended unexpectedly"


def test_a_destroyed_vm_is_gone_and_destroying_it_again_is_a_success(cloud: Cli) -> None:
    vm = cloud.create("brief", "--wait-for", "started")
    cloud.destroy("brief")
    assert "brief" not in cloud.names()
    assert cloud.refused("vm", "show", vm["ip"]).status == 3
    assert not cloud.record(vm["ip"]).parent.exists()
    assert vm["ip"] in [free["ip"] for free in cloud.json("node", "show")["pools"][0]["free"]]
    cloud.destroy("brief", vm["ip"])


def test_the_log_has_the_boot(cloud: Cli, booted: dict[str, Any]) -> None:
    log = cloud("vm", "log", "booted").stdout
    # A fork's own log begins where its template's ended.
    assert ("kernel is up" in log) == (booted["started_by"] == "cold")
    assert f"bound to {booted['ip']} as booted" in log


def test_the_console_runs_a_command_from_a_pipe(
    cloud: Cli, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    console = cloud.start(
        "vm",
        "console",
        pair[0]["name"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, _ = console.communicate(b"echo six times seven is $((6 * 7))\n", timeout=60)
    assert console.returncode == 0
    assert b"six times seven is 42" in out


class Terminal:
    """A terminal with somebody at it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self._seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def expect(self, text: bytes, timeout: float = 60) -> None:
        until = time.monotonic() + timeout
        while text not in self._seen:
            assert time.monotonic() < until, f"no {text!r}: {self._seen!r}"
            if select.select([self.master], [], [], 0.5)[0]:
                self._seen += os.read(self.master, 4096)

    def type_until(self, key: bytes, mark: bytes, text: bytes, timeout: float = 60) -> None:
        """Press a key again and again until something stands behind the mark: a shell between two commands
        may not hear it."""
        until = time.monotonic() + timeout
        while text not in self._seen.partition(mark)[2]:
            assert time.monotonic() < until, f"no {text!r} behind {mark!r}: {self._seen!r}"
            self.type(key)
            if select.select([self.master], [], [], 0.5)[0]:
                self._seen += os.read(self.master, 4096)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def until_raw(self, timeout: float = 60) -> None:
        until = time.monotonic() + timeout
        while self.settings()[3] & (termios.ICANON | termios.ECHO | termios.ISIG):
            assert time.monotonic() < until, "the terminal does not become raw"
            time.sleep(0.02)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    os.close(terminal.master)
    os.close(terminal.slave)


def test_a_terminal_is_raw_on_the_console_and_itself_again_after_ctrl_bracket(
    cloud: Cli, booted: dict[str, Any], terminal: Terminal
) -> None:
    before = terminal.settings()
    line = terminal.slave
    console = cloud.start(
        *("vm", "console", "--take", "--no-history", "booted"),
        stdin=line,
        stdout=line,
        stderr=line,
        start_new_session=True,
    )
    try:
        terminal.expect(b"Ctrl-] leaves it")
        terminal.until_raw()
        terminal.type(b"\r")
        terminal.expect(b"booted:/")
        # Ctrl-C goes to the guest's program, not to ours.
        terminal.type(b"echo sle''eps; sleep 1000\r")
        terminal.expect(b"sleeps")
        terminal.type_until(b"\x03", b"sleeps\r\n", b"booted:/")
        terminal.type(b"echo $((6 * 7))\r")
        terminal.expect(b"\n42")
        terminal.type(b"\x1d")
        terminal.expect(b"left the console of booted")
        assert console.wait(30) == 0
    finally:
        console.kill()
        console.wait()
    assert terminal.settings() == before
