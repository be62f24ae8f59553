"""The machine drivers that there are, by name. A driver's module is loaded when it is asked for."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from atoll.drivers.machine.base import MachineDriver, OnExit, OnLost, OnStall
from atoll.errors import Invalid

NAMES = ("qemu", "lxc", "docker", "sim")


class Setting(Struct, frozen=True):
    """What the node gives to drivers: whom to tell of exits, of machines that are paused for want of room and of
    those that lost a folder; a kernel to try accelerators with, a cache.

    `engine` is the socket of the container engine.
    """

    on_exit: OnExit
    probe_kernel: Path
    cache: Path
    engine: Path = Path("/run/docker.sock")
    on_stall: OnStall = lambda _ip, _stalled: None
    on_lost: OnLost = lambda _ip: None


async def load(name: str, setting: Setting) -> MachineDriver:
    """The driver of that name, ready for use."""
    if name == "qemu":
        from atoll.drivers.machine.qemu import probe
        from atoll.drivers.machine.qemu.driver import QemuDriver

        verdict = await probe.choose(setting.probe_kernel, setting.cache / "accelerator.json")
        return QemuDriver(verdict.accelerator, setting.on_exit, setting.on_stall, setting.on_lost)
    if name == "lxc":
        from atoll.drivers.machine.lxc.driver import LxcDriver

        return LxcDriver(setting.on_exit, setting.cache / "lxc")
    if name == "docker":
        from atoll.drivers.machine.docker.driver import DockerDriver

        return DockerDriver(setting.engine, setting.on_exit)
    if name == "sim":
        from atoll.drivers.machine.sim import SimDriver

        return SimDriver(setting.on_exit, on_stall=setting.on_stall)
    raise Invalid("driver", name, "no such machine driver", hint=f"choose one of {', '.join(NAMES)}")
