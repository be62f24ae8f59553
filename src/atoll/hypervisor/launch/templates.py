"""The templates of a node: which there are, making them in the background, giving them up when room is short.

    <state>/templates/<key>/template.json     what it is of; there when all of it is, and not before
    <state>/templates/<key>/…                 the driver's

Effects: files below its root, machines that become templates. The decisions are in atoll.plan.templates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from atoll.drivers.machine.base import CanFork, Machine, Nic
from atoll.errors import AtollError
from atoll.hypervisor.launch.supplies import Supplies
from atoll.model.vm import VM
from atoll.plan import templates as plan
from atoll.plan.templates import Doubt, Kept, Patience, Template, TemplateSpec
from atoll.system import aside, cgroups, clock, files, host, steps
from atoll.system.undo import Undo

log = logging.getLogger(__name__)

NAME = "template"
MAC = "02:a9:00:00:00:01"
NOBODY = "00000000-0000-0000-0000-000000000000"
PIDS = 128
RECORD_LIMIT = 64 << 10
CHECK_EVERY_S = 10.0
SETTLE_S = 0.2
MOST_DOUBTS = 256


class TemplateLimits(Struct, frozen=True):
    """What templates may take of a node."""

    most: int
    """How many are kept; 0: none are made."""
    memory_reserve_mib: int
    disk_reserve_mib: int
    patience: Patience = Patience()
    """With what could not be made, or not be forked."""


class _Held(Struct):
    template: Template
    used: int
    ready: bool


class Templates:
    """Found by what VMs have in common. No VM waits for one: what is not there yet is started cold."""

    def __init__(
        self,
        root: Path,
        limits: TemplateLimits,
        supplies: Supplies,
        cgroup: str,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._limits = limits
        self._kinds, self._images, self._ids = supplies.kinds, supplies.images, supplies.ids
        self._cgroup = cgroup
        self._changed = changed
        self._held: dict[str, _Held] = {}
        self._wanted: dict[str, TemplateSpec] = {}
        self._doubts: dict[str, Doubt] = {}
        self._leaving: set[str] = set()
        """Those whose files are being removed."""
        self._uses = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def ready(self) -> int:
        """Those of which forks can be made just now."""
        return sum(held.ready for held in self._held.values())

    # --- for those who start VMs

    def key(self, vm: VM, machine: Machine) -> str | None:
        """What a template for this VM is called, whether there is one or not; None when there cannot be."""
        try:
            image = self._images.get_digest(vm.image, vm.image_digest)
        except AtollError:
            return None
        driver = self._kinds.drivers.get(vm.driver)
        if self._limits.most == 0 or not isinstance(driver, CanFork) or not plan.can_fork(image, vm):
            return None
        spec = plan.spec_of(vm, machine.nic.mtu)
        template = self._machine(spec)
        # Whatever else a machine has (disks, a screen), its template would not have.
        if _without_identity(machine, template) != template:
            return None
        return plan.key_of(spec, driver.template_basis(template))

    def find(self, key: str | None) -> Path | None:
        """The template of this key, if forks can be made of it just now. Looking is not using."""
        held = self._held.get(key or "")
        return self._root / held.template.key if held is not None and held.ready else None

    def note_fork(self, key: str) -> None:
        """A fork of it runs."""
        self._doubts.pop(key, None)
        if key in self._held:
            self._held[key].used = self._count()

    def want(self, vm: VM, machine: Machine) -> None:
        """A VM had to be started cold: make a template for the next one, when there is time."""
        key = self.key(vm, machine)
        if key is not None and self._is_vacant(key) and not self._is_doubted(key):
            self._wanted[key] = plan.spec_of(vm, machine.nic.mtu)
            self._wake.set()

    async def doubt(self, key: str) -> None:
        """A fork of it failed, for what is in it. It goes, and one like it is made after a while."""
        self._put_off(key)
        await self._drop(key)

    def _is_vacant(self, key: str) -> bool:
        """Whether one of this key can be made: none is there, and none is being removed."""
        return key not in self._held and key not in self._leaving

    def _is_doubted(self, key: str) -> bool:
        return key in self._doubts and clock.monotonic() < self._doubts[key].until

    def _put_off(self, key: str) -> None:
        last = self._doubts.pop(key, None)
        self._doubts[key] = plan.doubted(last, clock.monotonic(), self._limits.patience)
        while len(self._doubts) > MOST_DOUBTS:
            del self._doubts[next(iter(self._doubts))]

    # --- in the background

    async def prepare(self) -> None:
        """Find what an earlier agent made. What is not whole, or of another host or image, goes."""
        files.make_dirs(self._root)
        for directory in sorted(self._root.iterdir()):
            template = self._read(directory)
            if template is None or self._limits.most == 0:
                log.info("template %s is of no use: removed", directory.name)
                await aside.remove_tree(directory)
            else:
                self._held[template.key] = _Held(template, self._count(), ready=False)

    async def tend(self) -> None:
        """For ever: make what is wanted, one at a time; give up what is too much."""
        while True:
            try:
                await self._tend()
            except (AtollError, OSError) as error:
                log.error("tending templates: %s", error)
            try:
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            # Whoever had to wait for a cold start is told first.
            await asyncio.sleep(SETTLE_S)
            self._wake.clear()

    async def _tend(self) -> None:
        limits = self._limits
        for key in [key for key, held in self._held.items() if not self._has_image(held.template.spec)]:
            log.info("template %s: dropped, its image is gone", key)
            await self._drop(key)
        for key in plan.to_drop(
            self._kept(), limits.most, files.free_mib(self._root), limits.disk_reserve_mib
        ):
            log.info("template %s: dropped, to make room on disk", key)
            await self._drop(key)
        for key in plan.to_unload(self._kept(), host.memory_mib()[1], limits.memory_reserve_mib):
            log.info("template %s: given up for now, memory is short", key)
            self._unload(key)
        for key in plan.to_load(self._kept(), host.memory_mib()[1], limits.memory_reserve_mib):
            await self._load(key)
        while self._wanted:
            key, spec = next(iter(self._wanted.items()))
            del self._wanted[key]
            await self._make_if_there_is_room(key, spec)

    async def _make_if_there_is_room(self, key: str, spec: TemplateSpec) -> None:
        reserve_mib = max(self._limits.memory_reserve_mib, self._limits.disk_reserve_mib)
        available_mib, free_mib = host.memory_mib()[1], files.free_mib(self._root)
        if not self._is_vacant(key) or not plan.has_room(spec, available_mib, free_mib, reserve_mib):
            return
        try:
            await self._make(key, spec)
        except (AtollError, OSError) as error:
            log.warning("making a template of image %s: %s", spec.image, error)
            self._put_off(key)

    async def _make(self, key: str, spec: TemplateSpec) -> None:
        driver, space = self._kinds.drivers[spec.driver], self._kinds.id_space(spec.driver)
        assert isinstance(driver, CanFork)
        directory = self._root / key
        await self._ids.until_free(space)
        async with Undo() as always, Undo() as undo:
            always.add(self._ids.release, NAME)
            ids = self._ids.take(NAME, space)
            machine = structs.replace(self._machine(spec), uid=ids.first, ids=ids.count)
            basis = dict(driver.template_basis(machine))
            if plan.key_of(spec, basis) != key:
                return  # the host has changed since it was wanted
            undo.add(aside.run, files.remove_tree, directory)
            await aside.run(files.make_dirs, directory)
            steps.step("template.begun")
            always.add(aside.run, files.remove_tree, machine.directory)
            await aside.run(files.make_dirs, machine.directory)
            always.add(aside.run, cgroups.remove, machine.cgroup)
            self._limit(spec, machine)
            steps.step("template.limited")
            always.add(driver.kill, machine)
            await driver.make_template(machine, directory)
            steps.step("template.made")
            record = msgspec.json.encode(Template(key, spec, basis))
            await aside.run(files.write_durably, directory / "template.json", record)
            steps.step("template.recorded")
            undo.commit()
        self._held[key] = _Held(Template(key, spec, basis), self._count(), ready=True)
        log.info("template %s: made, of image %s with %d MiB", key, spec.image, spec.memory_mib)
        self._changed()

    def _limit(self, spec: TemplateSpec, machine: Machine) -> None:
        """It may use what nobody else wants."""
        overhead_mib = self._kinds.overhead_mib(spec.driver)
        if overhead_mib is not None:
            limits = cgroups.Limits(
                cpu_milli_quota=None, cpu_weight=1, memory_mib=spec.memory_mib + overhead_mib, pids=PIDS
            )
            cgroups.ensure(machine.cgroup, limits)

    def _machine(self, spec: TemplateSpec) -> Machine:
        """The machine without an identity that forks are copied from."""
        image = self._images.get_digest(spec.image, spec.image_digest)
        return Machine(
            ip=NAME,
            name=NAME,
            instance_id=NOBODY,
            machine_type=spec.machine_type,
            memory_mib=spec.memory_mib,
            vcpus=spec.vcpus,
            kernel=self._images.path(image, image.boot.kernel),
            initrd=self._images.path(image, image.boot.initrd),
            cmdline=image.boot.cmdline,
            nic=Nic(link="at-template", bridge="", mac=MAC, mtu=spec.mtu),
            directory=self._root / "making",
            cgroup=f"{self._cgroup}/{spec.driver}/{NAME}",
            uid=0,
            rootfs=self._images.path(image, image.rootfs) if image.rootfs else None,
            image_digest=image.digest,
        )

    async def _load(self, key: str) -> None:
        driver = self._driver(key)
        try:
            await driver.load_template(self._root / key)
        except (AtollError, OSError) as error:
            log.warning("template %s cannot be read, and goes: %s", key, error)
            await self._drop(key)
            return
        if key in self._held:
            self._held[key].ready = True
            self._changed()

    def _unload(self, key: str) -> None:
        self._driver(key).forget_template(self._root / key)
        self._held[key].ready = False

    async def _drop(self, key: str) -> None:
        """Not found from here on. All of its files are removed, also if the caller is cancelled meanwhile."""
        if key in self._held:
            self._unload(key)
            del self._held[key]
        if key not in self._leaving:
            self._leaving.add(key)
            await aside.whole(self._remove(key))

    async def _remove(self, key: str) -> None:
        try:
            # Its record first: what is left of a removal that was interrupted is not whole.
            await aside.run(files.remove_tree, self._root / key / "template.json")
            steps.step("template.dropped")
            await aside.remove_tree(self._root / key)
        finally:
            self._leaving.discard(key)

    def _driver(self, key: str) -> CanFork:
        driver = self._kinds.drivers[self._held[key].template.spec.driver]
        assert isinstance(driver, CanFork)
        return driver

    def _kept(self) -> list[Kept]:
        return [
            Kept(key, held.used, files.used_mib(self._root / key), held.ready)
            for key, held in self._held.items()
        ]

    def _read(self, directory: Path) -> Template | None:
        """What a directory holds, if it is a whole template that is good for this host as it is."""
        try:
            text = files.read_limited(directory / "template.json", RECORD_LIMIT)
            template = msgspec.json.decode(text, type=Template)
            driver = self._kinds.drivers.get(template.spec.driver)
            if not isinstance(driver, CanFork) or template.key != directory.name:
                return None
            basis = driver.template_basis(self._machine(template.spec))
            return template if basis == template.basis else None
        except (OSError, AtollError, msgspec.MsgspecError):
            return None

    def _has_image(self, spec: TemplateSpec) -> bool:
        try:
            self._images.get_digest(spec.image, spec.image_digest)
        except AtollError:
            return False
        return True

    def _count(self) -> int:
        self._uses += 1
        return self._uses


def _without_identity(machine: Machine, template: Machine) -> Machine:
    """A machine as it would be if it were the template's: all that tells it from others is gone. Pure."""
    return structs.replace(
        machine,
        ip=template.ip,
        name=template.name,
        instance_id=template.instance_id,
        nic=template.nic,
        directory=template.directory,
        cgroup=template.cgroup,
        uid=template.uid,
        ids=template.ids,
        milli_cpus=template.milli_cpus,
        serial=template.serial,
    )
