"""What LXC is told of a machine."""

from __future__ import annotations

import shlex
from pathlib import Path

from msgspec import structs

from atoll.drivers.machine.base import Machine, Nic
from atoll.drivers.machine.lxc import config
from samples import a_machine

TOOLS = config.Tools(ip=Path("/sbin/ip"), printf=Path("/usr/bin/printf"))
INIT = config.Init("/sbin/init")
MACHINE = a_machine(
    nic=Nic(link="at-0a010005", bridge="br-default", mac="52:54:0a:01:00:05", mtu=1400),
    uid=0x6100_0000,
    ids=config.IDS,
)


def settings(machine: Machine = MACHINE, init: config.Init = INIT) -> dict[str, list[str]]:
    text = config.container_config(
        machine,
        console_log=Path("/log"),
        seccomp=Path("/seccomp"),
        init=init,
        apparmor="unconfined",
        tools=TOOLS,
    )
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" = ")
        found.setdefault(key, []).append(value)
    return found


def test_a_container_is_told_its_name_and_its_root_and_waits_for_that() -> None:
    told = settings()
    assert told["lxc.uts.name"] == ["web"]
    assert told["lxc.rootfs.path"] == ["dir:/mnt/root"]
    assert told["lxc.hook.pre-start"] == ["/bin/sh -c '[ -e /mnt/furnished ] || read -r _'"]


def test_only_a_systemd_is_given_groups_by_lxc() -> None:
    told = settings(init=config.Init("/sbin/init", systemd=True))
    assert told["lxc.cgroup.dir.container"] == ["atoll/3fa2b1/10.1.0.5/container"]
    assert told["lxc.cgroup.dir.monitor"] == ["atoll/3fa2b1/10.1.0.5/monitor"]
    assert not [key for key in settings() if key.startswith("lxc.cgroup")]


def test_users_and_groups_inside_are_a_range_of_its_own_outside() -> None:
    assert settings()["lxc.idmap"] == [f"{kind} 0 {MACHINE.uid} 65536" for kind in "ug"]


def test_ids_on_disk_are_those_that_the_container_sees() -> None:
    own, kernel = config.disk_ranges(MACHINE)
    assert own == config.id_range(MACHINE)
    # The kernel works as the host's root, whose files no id of the container's may be.
    assert (kernel.outside, kernel.count) == (0, 1)
    assert kernel.inside == own.inside + own.count


def test_its_link_is_made_in_the_container_and_put_into_the_bridge_before_its_init_starts() -> None:
    told = settings()
    assert told["lxc.net.0.type"] == ["empty"]
    (made,) = told["lxc.hook.start-host"]
    assert made == (
        "/usr/bin/printf '%s\\n' 'link add eth0 netns '$LXC_PID"
        "' address 52:54:0a:01:00:05 mtu 1400 up type veth peer name at-0a010005 mtu 1400'"
        " 'link set at-0a010005 master br-default addrgenmode none up' | /sbin/ip -batch -"
    )
    assert told["lxc.hook.post-stop"] == ["/bin/sh -c '/sbin/ip link delete at-0a010005 || :'"]


def test_each_of_its_links_is_made_and_removed() -> None:
    more = Nic(link="at-0a020005", bridge="br-storage", mac="52:54:0a:02:00:05", mtu=9000)
    told = settings(structs.replace(MACHINE, extra_nics=(more,)))
    (made,) = told["lxc.hook.start-host"]
    first, second = made.index("link set at-0a010005 "), made.index("'link add eth1 netns '$LXC_PID")
    assert first < second
    assert " address 52:54:0a:02:00:05 mtu 9000 up type veth peer name at-0a020005 " in made[second:]
    assert "link set at-0a020005 master br-storage " in made[second:]
    assert ["at-0a010005" in hook for hook in told["lxc.hook.post-stop"]] == [True, False]
    assert "at-0a020005" in told["lxc.hook.post-stop"][1]


def test_a_bridge_with_a_strange_name_is_no_command() -> None:
    nic = structs.replace(MACHINE.nic, bridge="$(reboot)")
    made = dict(config.link_hooks([nic], TOOLS))["lxc.hook.start-host"]
    told = shlex.split(made)
    assert "link set at-0a010005 master $(reboot) addrgenmode none up" in told


def test_what_is_dangerous_is_denied_in_a_form_that_lxc_reads() -> None:
    version, kind, architectures, *calls = config.seccomp_profile().splitlines()
    assert (version, kind, architectures) == ("2", "denylist", "[all]")
    assert {"bpf errno 38", "kexec_load errno 38", "init_module errno 38"} <= set(calls)
    # A container with an init of its own needs these.
    assert not {line.split()[0] for line in calls} & {"mount", "reboot", "clone", "unshare"}


def test_only_a_systemd_sees_its_cgroups() -> None:
    def mounted(init: config.Init) -> str:
        return settings(init=init)["lxc.mount.auto"][0]

    assert "cgroup" not in mounted(INIT)
    assert "cgroup:mixed" in mounted(config.Init("/sbin/init", systemd=True))
