"""A new user on a second machine: pip install, `atoll node install`, a VM; and nothing left of it afterwards."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.system.steps import STEPS

if TYPE_CHECKING:
    from tests.host.install.conftest import Machine

SUBNET = ("--subnet", "10.9.0.0/24", "--addresses", "10.9.0.50-10.9.0.59")
# Another DHCP server on the network of the VMs, which says when it hears one of them.
LISTENER = """
import os, socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("0.0.0.0", 67))
    print(os.getpid(), flush=True)
    print(server.recv(2048), flush=True)
"""
ON_PORT = (*SUBNET, "--port", "eth1")
CONFIG = "/etc/atoll/node.toml"

pytestmark = pytest.mark.timeout(300)


def installed(machine: Machine) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(machine.root("/var/lib/atoll/install.json").read_text())
    return record


def agent_of(machine: Machine) -> int:
    return int(json.loads(machine.root("/var/lib/atoll/agent.pid").read_text())["pid"])


def groups_of(node_id: str) -> list[str]:
    """Its control groups, in every hierarchy that this host has."""
    top = Path("/sys/fs/cgroup")
    return [str(path) for place in ("", "*/") for path in top.glob(f"{place}atoll/{node_id}")]


@pytest.fixture
def untouched(machine: Machine) -> Any:
    """Whatever the test did, the machine is as it was."""
    before = machine.snapshot()
    yield
    assert machine.snapshot() == before


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((*SUBNET, "--port", "eth9"), 3, "there is no link eth9"),
        ((*SUBNET, "--port", "eth0"), 4, "the host itself talks through it (10.8.0.2/24"),
        ((*SUBNET, "--bridge", "br9"), 3, "bridge br9: there is no such link"),
        ((*SUBNET, "--bridge", "eth1"), 4, "--port eth1"),
        (("--ip", "10.7.0.1"), 2, "no link of this host has that address"),
        (("--name", "No Name"), 2, "name 'No Name'"),
        (("--subnet", "10.9.0.0/24", "--port", "eth1"), 2, "--addresses 10.9.0.50-10.9.0.99"),
        (("--subnet", "10.9.0.0/24", "--addresses", "10.7.0.5"), 2, "is not inside subnet"),
        (("--gateway", "10.9.0.1"), 2, "add --subnet CIDR"),
        (("--node-ca", "/etc/hostname"), 2, "add --node-crl FILE"),
        (("--subnet", "10.9.0.0/24", "--vlan", "5"), 2, "needs the bridge"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_touched(
    machine: Machine, untouched: None, words: tuple[str, ...], status: int, said: str
) -> None:
    refused, text = machine.refused("node", "install", *words)
    assert said in text
    assert refused == status


def test_a_dry_run_says_what_would_be_done_and_does_nothing(machine: Machine, untouched: None) -> None:
    done = machine.atoll("node", "install", *ON_PORT, "--dry-run")
    assert "make bridge br-eth1 over eth1" in done.stdout
    assert f"{CONFIG}: write it" in done.stdout


def test_uninstalling_what_is_not_there_is_success(machine: Machine, untouched: None) -> None:
    assert "no node is installed" in machine.atoll("node", "uninstall", "--yes").stdout


def test_an_installation_that_fails_leaves_nothing_and_says_why(machine: Machine, untouched: None) -> None:
    """The image cannot be built where the kernel's package cannot be had."""
    done = machine.atoll("node", "install", check=False, ATOLL_CACHE="/proc/nowhere")
    assert done.returncode == 1
    assert "removing what was made" in done.stderr
    assert "/proc/nowhere" in done.stderr


@pytest.fixture(scope="class")
def before(machine: Machine) -> dict[str, Any]:
    return machine.snapshot()


@pytest.fixture(scope="class")
def node(machine: Machine, before: dict[str, Any]) -> str:
    """Its id, which is also that of its control groups."""
    done = machine.atoll("node", "install", "--name", "second", *ON_PORT)
    assert done.stdout == "node second is up at 10.8.0.2:6976\n"
    assert "a keeper of ours (systemd does not run here" in done.stderr
    return str(installed(machine)["id"])


@pytest.fixture(scope="class")
def vm(machine: Machine, node: str) -> dict[str, Any]:
    made: dict[str, Any] = machine.json("vm", "create", "--name", "web", "--image", "appliance")
    return made


class TestANode:
    """One node on its way: each test goes on from where the one before it ended."""

    def test_a_vm_on_a_physical_port_answers_its_network(self, machine: Machine, vm: dict[str, Any]) -> None:
        assert vm["ip"] == "10.9.0.50"
        assert machine.ask(vm["ip"])["hostname"] == "web"
        links = {name: (master, up) for name, master, up in machine.snapshot()["links"]}
        assert links["eth1"] == ("br-eth1", True)

    def test_the_host_itself_is_not_disturbed(
        self, machine: Machine, vm: dict[str, Any], before: dict[str, Any]
    ) -> None:
        now = machine.snapshot()
        for kind in ("addresses", "routes", "rules"):
            assert now[kind] == before[kind]
        assert {key: now["switches"][key] for key in before["switches"]} == before["switches"]
        tables = [line for line in now["firewall"] if line.startswith("table ")]
        assert tables == ["table bridge atoll {"]

    def test_no_other_user_can_read_its_configuration_or_keys(
        self, machine: Machine, vm: dict[str, Any]
    ) -> None:
        for path in (CONFIG, "/var/lib/atoll/pki/ca.key", "/var/lib/atoll/server/server.key"):
            assert machine.root(path).stat().st_mode & 0o077 == 0, path

    def test_the_unit_passes_systemds_own_check(self, machine: Machine, node: str) -> None:
        unit = "/etc/systemd/system/atoll-hypervisor.service"
        # It leaves files in /run, which are none of ours.
        verify = "mount -t tmpfs none /run; exec systemd-analyze verify --man=no "
        done = machine.run("unshare", "--mount", "sh", "-c", verify + unit, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    def test_installing_again_changes_nothing(self, machine: Machine, vm: dict[str, Any]) -> None:
        places = ("/var/lib/atoll/pki", "/var/lib/atoll/server", "/var/lib/atoll/client", "/etc/atoll")

        def content() -> dict[str, bytes]:
            paths = [path for place in places for path in machine.root(place).rglob("*") if path.is_file()]
            # The lock of the CA is there from the first time that somebody needed it.
            return {str(path): path.read_bytes() for path in paths if path.name != "lock"}

        agent, before = agent_of(machine), content()
        machine.atoll("node", "install", *ON_PORT)
        machine.atoll("node", "install")
        after = content()
        changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
        assert (agent_of(machine), changed) == (agent, [])

    def test_an_agent_that_is_killed_comes_back_and_the_vm_ran_on(
        self, machine: Machine, vm: dict[str, Any]
    ) -> None:
        boot, killed = machine.ask(vm["ip"])["boot_id"], agent_of(machine)
        machine.run("kill", "-9", str(killed))
        until(
            lambda: agent_of(machine) != killed and machine.atoll("vm", "list", check=False).returncode == 0
        )
        assert machine.json("vm", "show", "web")["state"] == "running"
        assert machine.ask(vm["ip"])["boot_id"] == boot

    def test_a_setting_that_was_edited_is_taken_up_and_the_vm_runs_on(
        self, machine: Machine, vm: dict[str, Any]
    ) -> None:
        boot, agent, path = machine.ask(vm["ip"])["boot_id"], agent_of(machine), machine.root(CONFIG)
        path.write_text(path.read_text() + "\n# mine\n[overcommit]\ncpus = 4\n")
        machine.atoll("node", "install", "--name", "renamed")
        node = machine.json("node", "show")
        assert (node["name"], node["overcommit"]["cpus"]) == ("renamed", 4)
        assert agent_of(machine) != agent
        assert "# mine" in path.read_text()
        assert machine.ask(vm["ip"])["boot_id"] == boot

    def test_a_setting_that_makes_no_sense_is_refused_and_the_agent_runs_on(
        self, machine: Machine, vm: dict[str, Any]
    ) -> None:
        agent, path = agent_of(machine), machine.root(CONFIG)
        text = path.read_text()
        path.write_text(f"hot_pol = 3\nport = 70000\n{text}")
        checked, said = machine.refused("node", "check-config")
        refused, brief = machine.refused("node", "install")
        path.write_text(text)
        assert (checked, refused) == (2, 2)
        assert f"{CONFIG}: hot_pol: there is no such setting" in said
        assert "did you mean hot_pool?" in said
        assert f"{CONFIG}: port: 70000: must be a whole number from 1 to 65535" in said
        assert "hot_pol" in brief
        assert agent_of(machine) == agent
        assert "is fine" in machine.atoll("node", "check-config").stdout

    def test_it_is_no_place_for_a_cloud(self, machine: Machine, vm: dict[str, Any]) -> None:
        assert machine.refused("up")[0] == 4
        assert "installed node" in machine.refused("down")[1]

    def test_status_tells_of_it(self, machine: Machine, vm: dict[str, Any]) -> None:
        status = machine.json("status")
        assert (status["agent"], status["pid"], status["version"]) == ("up", agent_of(machine), "0.1.0")
        assert status["keeper"]

    def test_it_is_not_removed_by_mistake(self, machine: Machine, vm: dict[str, Any]) -> None:
        assert machine.refused("node", "uninstall")[0] == 2
        status, said = machine.refused("node", "uninstall", "--yes")
        assert status == 4
        assert "--destroy" in said
        assert machine.ask(vm["ip"])["hostname"] == "web"

    def test_uninstalling_leaves_nothing(
        self, machine: Machine, vm: dict[str, Any], node: str, before: dict[str, Any]
    ) -> None:
        assert groups_of(node)
        machine.atoll("node", "uninstall", "--destroy", "--yes")
        assert machine.snapshot() == before
        assert groups_of(node) == []


def test_a_node_that_routes_a_subnet_of_its_own_puts_the_switches_back(
    machine: Machine, untouched: None
) -> None:
    machine.atoll("node", "install", "--subnet", "10.66.0.0/24")
    assert machine.run("cat", "/proc/sys/net/ipv4/ip_forward").stdout == "1\n"
    machine.atoll("node", "uninstall", "--yes")


def test_a_bridge_that_exists_is_used_and_left_alone(machine: Machine) -> None:
    machine.run("ip", "link", "add", "br0", "type", "bridge")
    machine.run("ip", "link", "set", "br0", "up")
    machine.run("ip", "link", "set", "eth1", "master", "br0", "up")
    try:
        before = machine.snapshot()
        machine.atoll("node", "install", *SUBNET, "--bridge", "br0")
        with machine.start("nsenter", "--net=/run/netns/outside", sys.executable, "-c", LISTENER) as other:
            assert other.stdout is not None
            listener = other.stdout.readline().strip()
            vm = machine.json("vm", "create", "--name", "web", "--image", "appliance")
            machine.run("kill", listener, check=False)
            assert other.stdout.read() == "", "a DHCP server of that network heard the VM"
        assert machine.ask(vm["ip"])["hostname"] == "web"
        # As badly as it can be left: nobody can do anything in an orderly way any more.
        machine.run(
            "kill", "-9", str(json.loads(machine.root("/var/lib/atoll/keeper.pid").read_text())["pid"])
        )
        machine.run("kill", "-9", str(agent_of(machine)))
        machine.root(CONFIG).write_text("no TOML at all")
        machine.atoll("node", "uninstall", "--destroy", "--yes")
        assert machine.snapshot() == before
    finally:
        machine.run("ip", "link", "delete", "br0")
        machine.run("ip", "link", "set", "eth1", "down")


INSTALLING = [name for name in sorted(STEPS) if name.startswith("install.")]
UNINSTALLING = [name for name in sorted(STEPS) if name.startswith("uninstall.")]


@pytest.fixture
def with_images(machine: Machine, untouched: None, images: Path) -> None:
    """Images that were built already: what is tested takes long enough."""
    shutil.copytree(images, machine.root("/var/lib/atoll/images"))


@pytest.mark.usefixtures("with_images")
@pytest.mark.parametrize("step", INSTALLING)
def test_an_installation_that_was_killed_is_finished_by_the_next_or_removed(
    machine: Machine, step: str
) -> None:
    killed = machine.atoll("node", "install", *ON_PORT, check=False, ATOLL_FAULT=f"{step}:1")
    assert killed.returncode == -signal.SIGKILL
    if step in ("install.configured", "install.started"):
        machine.atoll("node", "install", *ON_PORT)
        assert machine.json("node", "show")["pools"][0]["subnet"]["bridge"] == "br-eth1"
    machine.atoll("node", "uninstall", "--yes")


@pytest.mark.usefixtures("with_images")
@pytest.mark.parametrize("step", UNINSTALLING)
def test_a_removal_that_was_killed_is_finished_by_the_next(machine: Machine, step: str) -> None:
    machine.atoll("node", "install", *ON_PORT)
    killed = machine.atoll("node", "uninstall", "--yes", check=False, ATOLL_FAULT=f"{step}:1")
    assert killed.returncode == -signal.SIGKILL
    machine.atoll("node", "uninstall", "--yes")


def until(true: Callable[[], bool], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.1)
