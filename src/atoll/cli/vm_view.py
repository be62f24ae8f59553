"""How VMs look in tables and field lists. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from atoll.cli.output import Column, View, age, ip_key, joined
from atoll.model.hardware import Watchdog
from atoll.model.lifecycle import DOWN
from atoll.model.publishing import Publication, PublishedPort
from atoll.model.size import show_bytes, show_mib
from atoll.model.ssh import comment_of, kind_of
from atoll.model.vm import VM, VmState
from atoll.model.volume import Volume
from atoll.plan.capacity import demand
from atoll.plan.kept import in_words

_GREEN, _YELLOW, _RED, _DIM = "32", "33", "31", "2"
_COLOURS = {
    VmState.RUNNING: _GREEN,
    VmState.STARTING: _YELLOW,
    VmState.STOPPING: _YELLOW,
    VmState.DESTROYING: _YELLOW,
    VmState.SUSPENDING: _YELLOW,
    VmState.RESUMING: _YELLOW,
    VmState.SUSPENDED: _DIM,
    VmState.FAILED_TO_START: _RED,
    VmState.CRASHED: _RED,
    VmState.DAMAGED: _RED,
    VmState.STOPPED: _DIM,
}


def vm_view(now: datetime, carried: Sequence[PublishedPort] = ()) -> View[VM]:
    """VMs as seen at this moment: their age depends on it. `carried`: what is known of the published ports of one."""
    ports = {port.publication: port for port in carried}
    return View(
        name=lambda vm: vm.name,
        columns=(
            Column("name", lambda vm: vm.name, min_width=12),
            Column("ip", lambda vm: vm.ip, key=lambda vm: ip_key(vm.ip), min_width=13, rank=1),
            Column("state", _state, paint=lambda vm: _COLOURS[vm.state], min_width=8, rank=1),
            Column("owners", _owners, min_width=8, rank=3, is_long=True),
            Column("image", lambda vm: vm.image, min_width=9, rank=6, is_long=True),
            Column("cpus", lambda vm: show_cpus(vm.milli_cpus), key=lambda vm: vm.milli_cpus, rank=7),
            Column(
                "memory",
                lambda vm: show_mib(_memory_mib(vm)),
                key=_memory_mib,
                min_width=7,
                rank=5,
            ),
            Column(
                "age",
                lambda vm: age((now - vm.created_at).total_seconds()),
                key=lambda vm: now - vm.created_at,
                min_width=4,
                rank=4,
            ),
            Column("kind", lambda vm: vm.driver, wide=True, rank=10),
            Column(
                "ready",
                _last_stage,
                key=lambda vm: max(vm.ready.values(), default=0.0),
                min_width=14,
                wide=True,
                rank=11,
            ),
            Column("tags", _tags, wide=True, rank=12, is_long=True),
            Column("volumes", _volumes, wide=True, rank=14, is_long=True),
            Column("expires", lambda vm: _moment(vm.expires_at), wide=True, rank=13),
            Column("mac", lambda vm: vm.mac, wide=True, rank=15),
            Column("subnet", lambda vm: vm.subnet, wide=True, rank=16),
            Column(
                "published",
                lambda vm: joined(_published(one, ports.get(one)) for one in vm.published),
                wide=True,
                rank=9,
                is_long=True,
            ),
            Column("shares", lambda vm: joined(map(str, vm.shares)), wide=True, rank=17, is_long=True),
            Column("ip6", lambda vm: vm.ip6 or "-", detail=True),
            Column("started-by", lambda vm: vm.started_by or "-", detail=True),
            Column("machine", lambda vm: vm.machine_type, detail=True),
            Column("console", lambda vm: vm.console, detail=True),
            Column("kernel-options", lambda vm: vm.kernel_options or "-", detail=True),
            Column("watchdog", _watchdog, detail=True),
            Column("netboot", lambda vm: vm.netboot, detail=True),
            Column("vcpus", lambda vm: str(vm.vcpus), key=lambda vm: vm.vcpus, detail=True),
            Column("nics", _nics, detail=True),
            Column("created", lambda vm: f"{vm.created_at:%Y-%m-%d %H:%M:%SZ}", detail=True),
            Column("stages", _stages, detail=True),
            Column("instance", lambda vm: vm.instance_id, detail=True),
            Column("digest", lambda vm: vm.image_digest, detail=True),
            Column("user-data", lambda vm: vm.user_data_sha256 or "-", detail=True),
            Column("role", lambda vm: vm.role or "-", detail=True),
            Column("role-credential", lambda vm: _moment(vm.role_credential_expires_at), detail=True),
            Column("role-cloud", lambda vm: vm.role_cloud or "-", detail=True),
            Column("role-problem", lambda vm: vm.role_problem or "-", detail=True),
            Column("keys", _keys, detail=True),
            Column("request", lambda vm: vm.request_id or "-", detail=True),
            Column("restart", lambda vm: _restart(vm), detail=True),
            Column("protected", lambda vm: "yes" if vm.protected else "no", detail=True),
            Column("kept", lambda vm: "; ".join(in_words(vm.kept)) or "-", detail=True),
            Column("suspended", lambda vm: _suspended(vm, now), detail=True),
            Column("holds", _holds, detail=True),
            Column("at-next-start", lambda vm: joined(waiting(vm)), detail=True),
            Column("reason", lambda vm: vm.reason or "-", detail=True),
            Column("remarks", lambda vm: joined(vm.remarks), detail=True),
        ),
    )


def show_cpus(milli_cpus: int) -> str:
    return f"{milli_cpus / 1000:g}"


def _state(vm: VM) -> str:
    """Its state; of one that is held up for want of room, that as well: `reason` says more."""
    return f"{vm.state}, paused" if vm.is_paused else vm.state


def _suspended(vm: VM, now: datetime) -> str:
    """Where its memory is, and since when."""
    if vm.suspended is None:
        return "-"
    ago = age((now - vm.suspended.since).total_seconds())
    return f"to {vm.suspended.to} since {_moment(vm.suspended.since)} ({ago})"


def waiting(vm: VM) -> list[str]:
    """What of a VM waits for its next start, as it is now and as it will be."""
    lines = []
    for field in vm.pending:
        label, show = _WAITS.get(field, (field, None))
        if show is None or vm.running is None:
            lines.append(label)
        else:
            lines.append(f"{label} {show(getattr(vm.running, field))} → {show(getattr(vm, field))}")
    return lines


def _plain(value: object) -> str:
    return str(value) or "-"


_WAITS: dict[str, tuple[str, Callable[[Any], str] | None]] = {
    "memory_mib": ("memory", show_mib),
    "vcpus": ("vcpus", _plain),
    "machine_type": ("machine-type", _plain),
    "console": ("console", _plain),
    "kernel_options": ("kernel-options", _plain),
    "watchdog": ("watchdog", _plain),
    "watchdog_action": ("watchdog-action", _plain),
    "netboot": ("netboot", _plain),
    "volumes": ("volumes", None),
    "shares": ("share", lambda shares: joined(map(str, shares))),
}
"""What a machine was started with, in the command's words, and how it is shown."""


def _last_stage(vm: VM) -> str:
    if not vm.ready or not _is_up(vm):
        return "-"
    stage, elapsed_s = max(vm.ready.items(), key=lambda item: item[1])
    return f"{stage} {elapsed_s:.2f}s"


def _is_up(vm: VM) -> bool:
    """Whether what it reached at its last start says anything of now."""
    return vm.state in (VmState.STARTING, VmState.RUNNING)


def _stages(vm: VM) -> str:
    if not _is_up(vm):
        return "-"
    return joined(f"{stage} {elapsed_s:.2f}s" for stage, elapsed_s in vm.ready.items())


def _published(one: Publication, port: PublishedPort | None) -> str:
    """Where it is, and what was carried as far as that is known: 0.0.0.0:8080 -> 80 (2 open, …)."""
    leads = f"{one.key} -> {one.guest_port}"
    if port is None:
        return leads
    return f"{leads} ({port.problem or carried_words(port)})"


def carried_words(port: PublishedPort) -> str:
    moved = f"{show_bytes(port.received_bytes)} in, {show_bytes(port.sent_bytes)} out"
    return f"{port.open} open, {port.connections} so far, {moved}"


def _holds(vm: VM) -> str:
    """What is kept for a VM that does not run: all that it counts for, as when it runs; for one that is suspended to
    disk, what it has there."""
    if vm.state not in DOWN and vm.state is not VmState.SUSPENDED:
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


def _tags(vm: VM) -> str:
    return joined(f"{key}={value}" for key, value in vm.tags.items())


def _keys(vm: VM) -> str:
    return joined(comment_of(key) or kind_of(key) for key in vm.ssh_keys)


def _volumes(vm: VM) -> str:
    return joined(_volume(volume) for volume in vm.volumes)


def _volume(volume: Volume) -> str:
    if volume.in_memory and not volume.size_mib:
        return f"{volume.name} in memory"
    return f"{volume.name} {volume.format} {show_mib(volume.size_mib)}"


def _memory_mib(vm: VM) -> int:
    """What it has; what it will have is in what waits."""
    return vm.running.memory_mib if vm.running is not None else vm.memory_mib


def _watchdog(vm: VM) -> str:
    return "-" if vm.watchdog is Watchdog.NONE else f"{vm.watchdog}, {vm.watchdog_action}"


def _restart(vm: VM) -> str:
    return f"{vm.restart}, {vm.restarts} so far" if vm.restarts else str(vm.restart)


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%SZ}" if at is not None else "-"
