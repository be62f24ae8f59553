"""How VMs look in tables and field lists. Pure."""

from __future__ import annotations

from datetime import datetime

from atoll.cli.output import Column, View, age, ip_key, joined
from atoll.model.hardware import Watchdog
from atoll.model.lifecycle import DOWN
from atoll.model.size import show_mib
from atoll.model.ssh import comment_of, kind_of
from atoll.model.vm import VM, VmState
from atoll.plan.capacity import demand

_GREEN, _YELLOW, _RED, _DIM = "32", "33", "31", "2"
_COLOURS = {
    VmState.RUNNING: _GREEN,
    VmState.STARTING: _YELLOW,
    VmState.STOPPING: _YELLOW,
    VmState.DESTROYING: _YELLOW,
    VmState.FAILED_TO_START: _RED,
    VmState.CRASHED: _RED,
    VmState.DAMAGED: _RED,
    VmState.STOPPED: _DIM,
}


def vm_view(now: datetime) -> View[VM]:
    """VMs as seen at this moment: their age depends on it."""
    return View(
        name=lambda vm: vm.name,
        columns=(
            Column("name", lambda vm: vm.name, min_width=12),
            Column("ip", lambda vm: vm.ip, key=lambda vm: ip_key(vm.ip), min_width=13),
            Column("state", _state, paint=lambda vm: _COLOURS[vm.state], min_width=8),
            Column("image", lambda vm: vm.image, min_width=9),
            Column("cpus", lambda vm: show_cpus(vm.milli_cpus), key=lambda vm: vm.milli_cpus),
            Column("memory", lambda vm: show_mib(vm.memory_mib), key=lambda vm: vm.memory_mib, min_width=8),
            Column("ready", _last_stage, key=lambda vm: max(vm.ready.values(), default=0.0), min_width=14),
            Column(
                "age",
                lambda vm: age((now - vm.created_at).total_seconds()),
                key=lambda vm: now - vm.created_at,
            ),
            Column("mac", lambda vm: vm.mac, wide=True),
            Column("ip6", lambda vm: vm.ip6 or "-", wide=True),
            Column("driver", lambda vm: vm.driver, wide=True),
            Column("started_by", lambda vm: vm.started_by or "-", wide=True),
            Column("machine", lambda vm: vm.machine_type, wide=True),
            Column("console", lambda vm: vm.console, wide=True),
            Column("kernel-options", lambda vm: vm.kernel_options or "-", wide=True),
            Column("watchdog", _watchdog, wide=True),
            Column("netboot", lambda vm: vm.netboot, wide=True),
            Column("vcpus", lambda vm: str(vm.vcpus), key=lambda vm: vm.vcpus, wide=True),
            Column("subnet", lambda vm: vm.subnet, wide=True),
            Column("nics", _nics, wide=True),
            Column("owners", _owners, wide=True),
            Column("tags", lambda vm: joined(f"{key}={value}" for key, value in vm.tags.items()), wide=True),
            Column("created", lambda vm: f"{vm.created_at:%Y-%m-%d %H:%M:%SZ}", wide=True),
            Column("volumes", _volumes, wide=True),
            Column("stages", _stages, wide=True),
            Column("instance", lambda vm: vm.instance_id, wide=True),
            Column("digest", lambda vm: vm.image_digest, wide=True),
            Column("user-data", lambda vm: vm.user_data_sha256 or "-", wide=True),
            Column("role", lambda vm: vm.role or "-", wide=True),
            Column("role-credential", lambda vm: _moment(vm.role_credential_expires_at), wide=True),
            Column("role-problem", lambda vm: vm.role_problem or "-", wide=True),
            Column("keys", _keys, wide=True),
            Column("request", lambda vm: vm.request_id or "-", wide=True),
            Column("restart", lambda vm: _restart(vm), wide=True),
            Column("protected", lambda vm: "yes" if vm.protected else "no", wide=True),
            Column("expires", lambda vm: _moment(vm.expires_at), wide=True),
            Column("holds", _holds, wide=True),
            Column("pending", lambda vm: joined(vm.pending), wide=True),
            Column("reason", lambda vm: vm.reason or "-", wide=True),
            Column("remarks", lambda vm: joined(vm.remarks), wide=True),
        ),
    )


def show_cpus(milli_cpus: int) -> str:
    return f"{milli_cpus / 1000:g}"


def _state(vm: VM) -> str:
    """Its state; of one that is held up for want of room, that as well: `reason` says more."""
    return f"{vm.state}, paused" if vm.is_paused else vm.state


def _last_stage(vm: VM) -> str:
    if not vm.ready:
        return "-"
    stage, elapsed_s = max(vm.ready.items(), key=lambda item: item[1])
    return f"{stage} {elapsed_s:.2f}s"


def _stages(vm: VM) -> str:
    return joined(f"{stage} {elapsed_s:.2f}s" for stage, elapsed_s in vm.ready.items())


def _holds(vm: VM) -> str:
    """What is kept for a VM that is down: all that it counts for, as when it runs."""
    if vm.state not in DOWN:
        return "-"
    kept = demand(vm)
    disk = f"disk {show_mib(kept.disk_mib)}, " if kept.disk_mib else ""
    places = joined(nic.ip for nic in vm.all_nics)
    reserved = f"memory {show_mib(kept.memory_mib)}, cpus {show_cpus(kept.milli_cpus)}"
    return f"{disk}address {places}; reserved: {reserved}"


def _nics(vm: VM) -> str:
    """Those beside the first."""
    return joined(" ".join(filter(None, (nic.subnet, nic.ip, nic.mac, nic.ip6))) for nic in vm.nics)


def _owners(vm: VM) -> str:
    return joined([*vm.owner_users, *(f"group {group}" for group in vm.owner_groups)])


def _keys(vm: VM) -> str:
    return joined(comment_of(key) or kind_of(key) for key in vm.ssh_keys)


def _volumes(vm: VM) -> str:
    return joined(f"{volume.name} {volume.format} {show_mib(volume.size_mib)}" for volume in vm.volumes)


def _watchdog(vm: VM) -> str:
    return "-" if vm.watchdog is Watchdog.NONE else f"{vm.watchdog}, {vm.watchdog_action}"


def _restart(vm: VM) -> str:
    return f"{vm.restart}, {vm.restarts} so far" if vm.restarts else str(vm.restart)


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%SZ}" if at is not None else "-"
