"""One cloud with machines of every kind at once: the same commands, the same network, nothing left of any."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import private_engine as engine
from atoll.plan.firewall import link_for
from atoll.system import cgroups, processes
from atoll.system.links import Links
from cloud_traces import groups_of, left_of

if TYPE_CHECKING:
    from tests.host.conftest import Cli

KINDS = ("qemu", "lxc", "docker")
SCRIPT = "#!/bin/sh\necho I am $(hostname)\nexit 7\n"


@pytest.fixture(scope="module")
def engine_socket() -> Iterator[Path]:
    with engine.private_engine() as socket:
        yield socket


@pytest.fixture(scope="module")
def mixed(
    engine_socket: Path, images: Path, making_cloud: Callable[[Path], AbstractContextManager[Cli]]
) -> Iterator[Cli]:
    """A cloud with a VM of each kind, all made at the same moment."""
    with making_cloud(images) as made:
        cloud = replace(made, environment={"DOCKER_HOST": f"unix://{engine_socket}"})
        script = made.directory.parent / "user-data"
        script.write_text(SCRIPT)
        # An engine that was not there when the cloud was made is found by the next `up`.
        made("up")
        cloud("up")
        commands = [
            cloud.start(
                "vm", "create", "--name", f"a-{kind}", "--image", "appliance", "--driver", kind,
                "--user-data", str(script), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for kind in KINDS
        ]  # fmt: skip
        assert [command.wait(120) for command in commands] == [0, 0, 0]
        yield cloud


def vms(cloud: Cli) -> dict[str, dict[str, Any]]:
    return {vm["driver"]: vm for vm in cloud.json("vm", "list")}


def containers(socket: Path, cloud: Cli) -> list[str]:
    """All containers of a cloud, whatever their state."""
    listed = json.loads(engine.ask(socket, "/containers/json?all=1"))
    prefix = f"atoll/{cloud.facts['id']}/"
    return [one["Names"][0] for one in listed if one["Labels"].get("atoll.cgroup", "").startswith(prefix)]


def pids_of(cloud: Cli, vm: dict[str, Any]) -> tuple[int, ...]:
    return processes.processes_in(cloud.group(vm["ip"], vm["driver"]))


def processes_of(cloud: Cli, ip: str, kind: str) -> set[str]:
    found = {Path(f"/proc/{pid}/comm") for pid in processes.processes_in(cloud.group(ip, kind))}
    return {path.read_text().strip() for path in found if path.exists()}


def test_each_kind_answers_with_its_own_name_and_ran_its_user_data(mixed: Cli) -> None:
    for kind, vm in vms(mixed).items():
        said = after_its_script(mixed, vm["ip"])
        assert (said["hostname"], said["ip"], said["mac"]) == (f"a-{kind}", vm["ip"], vm["mac"])
        assert said["instance_id"] == vm["instance_id"]
        assert said["user_data_status"] == 7
        assert f"I am a-{kind}" in mixed("vm", "log", vm["name"]).stdout


def after_its_script(cloud: Cli, ip: str) -> dict[str, Any]:
    """What a VM says of itself once its user data, which runs beside its page, has ended."""
    until = time.monotonic() + 30
    while (said := cloud.ask(ip))["user_data_status"] is None:
        assert time.monotonic() < until, "the user data does not end"
        time.sleep(0.05)
    return said


def test_the_list_shows_the_kinds_and_every_stage_of_each(mixed: Cli) -> None:
    listed = vms(mixed)
    assert set(listed) == set(KINDS)
    for vm in listed.values():
        assert set(vm["ready"]) == {"address", "volume", "started", "dhcp", "metadata", "port:80"}
    # Nobody waits for a lease that is never asked for.
    assert listed["docker"]["ready"]["dhcp"] - listed["docker"]["ready"]["started"] < 0.01


def test_each_kind_runs_as_what_it_says(mixed: Cli) -> None:
    running = {kind: processes_of(mixed, vm["ip"], kind) for kind, vm in vms(mixed).items()}
    assert running["qemu"] == {"qemu-system-x86"}
    assert running["lxc"] == {"sh", "tail", "lxc-start", "init"}
    assert running["docker"] == {"init"}


def test_the_node_says_how_each_kind_is_confined(mixed: Cli) -> None:
    confined = {driver["name"]: driver["confinement"] for driver in mixed.json("node", "show")["drivers"]}
    assert set(confined) == set(KINDS)
    for kind in KINDS:
        assert {"user", "capabilities", "seccomp"} <= set(confined[kind])
    shown = mixed("node", "show").stdout
    assert [line for line in shown.splitlines() if line.split()[:2] == ["lxc", "namespaces"]]


def test_the_kinds_reach_each_other_over_one_bridge(mixed: Cli) -> None:
    listed = vms(mixed)
    for kind, other in (("lxc", "docker"), ("docker", "qemu"), ("qemu", "lxc")):
        with mixed.shell(f"a-{kind}") as shell:
            said = shell.run(f"wget -q -O - http://{listed[other]['ip']}/")
        assert f'"hostname": "a-{other}"' in said


def test_no_kind_can_send_under_an_address_that_is_not_its_own(mixed: Cli) -> None:
    listed = vms(mixed)
    spare = "10.213." + listed["lxc"]["ip"].split(".")[2] + ".200"
    with mixed.shell("a-lxc") as shell:
        shell.run(f"ip addr add {spare}/24 dev eth0")
        # An answer would come back to us; the question never leaves.
        said = shell.run(f"ping -c 1 -W 1 -I {spare} {listed['qemu']['ip']}")
        shell.run(f"ip addr del {spare}/24 dev eth0")
        ours = shell.run(f"ping -c 1 -W 5 {listed['qemu']['ip']}")
    assert "100% packet loss" in said
    assert " 0% packet loss" in ours


def test_all_kinds_run_on_without_an_agent_and_are_found_again(mixed: Cli, engine_socket: Path) -> None:
    before = {kind: mixed.ask(vm["ip"])["random"] for kind, vm in vms(mixed).items()}
    ips = {kind: vm["ip"] for kind, vm in vms(mixed).items()}
    mixed.kill_agent()
    assert {kind: mixed.ask(ip)["random"] for kind, ip in ips.items()} == before
    mixed("up")
    assert {kind: vm["state"] for kind, vm in vms(mixed).items()} == dict.fromkeys(KINDS, "running")
    assert {kind: mixed.ask(ip)["random"] for kind, ip in ips.items()} == before
    (container,) = containers(engine_socket, mixed)
    assert container.startswith(f"/atoll-{mixed.facts['id']}-docker-{ips['docker']}-")


@pytest.mark.parametrize("kind", ["lxc", "docker"])
def test_the_same_commands_stop_start_and_reboot(mixed: Cli, kind: str) -> None:
    name, ip = f"a-{kind}", vms(mixed)[kind]["ip"]
    assert mixed.json("vm", "stop", name)["reason"] == ""
    assert processes_of(mixed, ip, kind) == set()
    mixed("vm", "start", name, "--wait-for", "port:80")
    assert mixed.ask(ip)["hostname"] == name
    mixed("vm", "reboot", name, "--wait-for", "port:80")
    assert mixed.ask(ip)["hostname"] == name


@pytest.mark.parametrize("kind", ["lxc", "docker"])
def test_a_container_keeps_its_root_and_its_power_button_works_from_inside(mixed: Cli, kind: str) -> None:
    name = f"a-{kind}"
    with mixed.shell(name) as shell:
        shell.run("echo kept >/root/file")
        # In a container of Docker's nobody may power off: the last process to go is its end.
        shell.begin("poweroff -f" if kind == "lxc" else "kill -TERM 1")
        mixed.until(name, "stopped")
    assert mixed.show(name)["reason"] == "the guest powered off"
    mixed("vm", "start", name, "--wait-for", "port:80")
    with mixed.shell(name) as shell:
        assert "\nkept" in shell.run("cat /root/file")


def test_a_docker_container_has_its_root_also_under_a_new_name(mixed: Cli, engine_socket: Path) -> None:
    with mixed.shell("a-docker") as shell:
        shell.run("echo named >/root/named")
    (before,) = containers(engine_socket, mixed)
    mixed("vm", "change", "a-docker", "--hostname", "b-docker")
    mixed("vm", "reboot", "b-docker", "--wait-for", "port:80")
    assert mixed.ask(vms(mixed)["docker"]["ip"])["hostname"] == "b-docker"
    with mixed.shell("b-docker") as shell:
        assert "\nnamed" in shell.run("cat /root/named")
    (after,) = containers(engine_socket, mixed)
    assert after != before
    mixed("vm", "change", "b-docker", "--hostname", "a-docker")
    mixed("vm", "reboot", "a-docker", "--wait-for", "port:80")


@pytest.mark.parametrize("kind", ["lxc", "docker"])
def test_the_memory_of_a_container_changes_while_it_runs(mixed: Cli, kind: str) -> None:
    name, vm = f"a-{kind}", vms(mixed)[kind]
    before = mixed.ask(vm["ip"])["random"]
    for memory, mib in (("300MiB", 300), ("128MiB", 128)):
        changed = mixed.json("vm", "change", name, "--memory", memory)
        assert (changed["memory_mib"], changed["pending"]) == (mib, [])
        assert memory_limit_mib(mixed.group(vm["ip"], kind)) == mib + 16
    assert mixed.ask(vm["ip"])["random"] == before
    assert "memory" in mixed.refused("vm", "change", name, "--memory", "8TiB").brief
    assert mixed.show(name)["memory_mib"] == 128


def memory_limit_mib(group: str) -> int:
    found = {path.parent / "memory.limit_in_bytes" for path in cgroups.join_paths(group)}
    found |= {path.parent / "memory.max" for path in cgroups.join_paths(group)}
    (limit,) = {int(path.read_text()) for path in found if path.exists()}
    return limit >> 20


def test_an_lxc_container_reboots_itself_and_stays_the_same_vm(mixed: Cli) -> None:
    before = mixed.ask(vms(mixed)["lxc"]["ip"])
    with mixed.shell("a-lxc") as shell:
        shell.begin("reboot -f")
        shell.expect("port 80 is open")
    after = mixed.ask(before["ip"])
    assert mixed.show("a-lxc")["state"] == "running"
    assert (after["instance_id"], after["random"] == before["random"]) == (before["instance_id"], False)


@pytest.mark.parametrize("kind", ["lxc", "docker"])
def test_a_container_that_dies_is_seen_as_crashed_and_can_be_started_again(mixed: Cli, kind: str) -> None:
    name, ip = f"a-{kind}", vms(mixed)[kind]["ip"]
    os.kill(init_of(mixed, ip, kind), 9)
    assert mixed.until(name, "crashed")["reason"] == "the machine ended unexpectedly"
    mixed("vm", "start", name, "--wait-for", "port:80")
    assert mixed.ask(ip)["hostname"] == name


def init_of(cloud: Cli, ip: str, kind: str) -> int:
    for pid in processes.processes_in(cloud.group(ip, kind)):
        if Path(f"/proc/{pid}/comm").read_text() == "init\n":
            return pid
    raise AssertionError(f"there is no init at {ip}")


def test_a_port_of_a_guest_of_any_kind_is_reached_here_through_the_api(mixed: Cli) -> None:
    for kind in KINDS:
        with mixed.start(
            "vm", "forward", "-q", f"a-{kind}", "0:80", "0:81", stdout=subprocess.PIPE
        ) as forward:
            try:
                assert forward.stdout is not None
                lines = [forward.stdout.readline().decode().split() for _ in range(2)]
                (open_, closed) = (line[0].rpartition(":") for line in lines)
                assert [line[1:] for line in lines] == [["->", f"a-{kind}:80"], ["->", f"a-{kind}:81"]]
                assert f'"hostname": "a-{kind}"' in ask(open_[0], int(open_[2]))
                # Nobody listens there: it is broken off, and the next one is served.
                assert ask(closed[0], int(closed[2])) == ""
                assert f'"hostname": "a-{kind}"' in ask(open_[0], int(open_[2]))
            finally:
                forward.kill()


def ask(host: str, port: int) -> str:
    """Its answer, to who has said all and waits for it; nothing when it is broken off."""
    with socket.create_connection((host, port), 30) as client, suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()
    return ""


def test_a_destroyed_vm_of_any_kind_leaves_nothing(mixed: Cli, engine_socket: Path) -> None:
    for kind in ("lxc", "docker"):
        ip = mixed.create(f"short-{kind}", "--driver", kind)["ip"]
        mixed.destroy(f"short-{kind}")
        assert list((mixed.directory / "node").glob(f"*/{ip}*")) == []
        assert groups_of(mixed.group(ip, kind)) == []
        with Links(mixed.namespace) as links:
            assert not any(name.startswith(link_for(ip)) for name in links.names())
        assert not any(name.endswith(ip) for name in containers(engine_socket, mixed))


def test_destroying_the_cloud_leaves_nothing_of_any_kind(mixed: Cli, engine_socket: Path) -> None:
    listed, facts = vms(mixed), mixed.facts
    known = {pid for vm in listed.values() for pid in pids_of(mixed, vm)}
    assert known
    mixed("down", "--destroy", "--yes")
    left = [Path(f"/proc/{pid}/cmdline") for pid in known]
    assert [path.read_bytes() for path in left if path.exists() and path.read_bytes()] == []
    assert left_of(facts["id"], mixed.directory, engine_socket) == []
