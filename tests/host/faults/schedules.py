"""Random operations on a node whose agent dies, or finds the disk full, at a named step; and what must come of them.

A schedule is one agent: it recovers from what the one before it left, is checked, and is asked for one thing after
the other until its fault strikes. The next agent is the next schedule.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from atoll.api import changes, given, volumes
from atoll.api import hypervisor as api
from atoll.api.changes import ChangeVm
from atoll.api.client import Client
from atoll.api.hypervisor import CreateVm, StopVm, Wait
from atoll.api.route import Done
from atoll.api.volumes import AddVolume
from atoll.errors import AtollError, Conflict, NoCapacity, NotFound, PoolEmpty, TimedOut, Unreachable
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.vm import VM, VmSpec
from atoll.model.volume import VolumeSpec
from atoll.system import processes

NAMES = ("ada", "bob", "cyd", "dot", "eve")
DOWN = frozenset({"stopped", "crashed", "failed-to-start"})
LEGAL = {
    "start": DOWN | {"running"},
    "reboot": DOWN | {"running"},
    "stop": frozenset({"running", "stopped"}),
    "guest": DOWN | {"running"},
}
"""What a VM may be found as, when this was under way with it and nobody was told how it ended."""
ONCE = frozenset(
    {
        *("recovery.seen", "recovery.begun", "recovery.done", "recovery.undone", "template.dropped"),
        *("ids.begun", "ids.claimed", "ids.given-back", "image.let-go"),
    }
)
"""Steps that an agent passes once."""
FULL_DISK = ("write.begin", "write.written")
AWAIT_S = 60.0
PAUSE_S = 0.02
MOST_ADDRESSES = 16
SPARE = Subnet("spare", "10.79.0.0/24", "10.79.0.1")
"""One that comes, is changed and goes, and that no VM is in."""
SPARE_ADDRESSES = tuple(Address(f"10.79.0.{last}", mac_for(f"10.79.0.{last}")) for last in (10, 11))
REFUSED = (Conflict, NoCapacity, NotFound, PoolEmpty)

# What has to be asked for, or waited for, so that a step is passed for sure.
ROADS: dict[str, tuple[str, ...]] = {
    "create": ("create",),
    "launch": ("create",),
    "write": ("create",),
    "start": ("create", "stop", "start"),
    "stop": ("create", "stop"),
    "destroy": ("create", "destroy"),
    "discard": ("create", "destroy"),
    "halt": ("create", "stop"),
    "change": ("create", "change", "rewrite"),
    "move": ("create", "stop", "move"),
    "volume": ("create", "delete-volume", "add-volume", "delete-volume"),
    "template": ("new-size", "twin", "template"),
    "template.dropped": ("new-size", "twin", "template") * 3,
    "fork": ("twin", "template", "twin"),
    "handover": ("twin", "member", "twin"),
    "qemu": ("create", "stop"),
    "subnet": ("add-spare", "change-spare", "remove-spare"),
    "addresses": ("add-spare", "empty-spare"),
    "pool": ("twin", "member"),
    "image": ("create",),
}
PRELUDES = {
    "recovery.undone": "create.launched:1",
    "recovery.one": "create.committed:1",
    "exit": "create.committed:1",
}
"""What an agent before it has to leave behind."""

UPSET: dict[str, Callable[[Any], None]] = {
    "ids.begun": lambda lab: lab.forget_blocks(),
    "ids.claimed": lambda lab: lab.forget_blocks(),
    "ids.given-back": lambda lab: lab.add_blocks(),
    "image.let-go": lambda lab: lab.add_images(),
    # Twice: machines may need the one before.
    "image.removed": lambda lab: (lab.add_images(), lab.add_images()),
}
"""What has to be found otherwise than it was left, so that a step is passed."""

USUAL_MIB = {"sim": 64, "qemu": 128}
SIZES = 64
"""How many others there are: more than a node keeps templates."""
CONFIG = {"handover": "pool", "pool": "pool", "qemu": "cold", "template.dropped": "few"}


@dataclass
class Known:
    """What a client knows of a VM: nothing else may be found."""

    states: frozenset[str]
    mark: str
    """The tag that was set last, and acknowledged."""
    maybe: str | None = None
    """The one that was being set."""


@dataclass
class Model:
    """What was acknowledged, and what was under way when the agent died."""

    vms: dict[str, Known] = field(default_factory=dict)
    making: set[str] = field(default_factory=set)
    going: set[str] = field(default_factory=set)
    adding: dict[str, set[str]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)


class Player:
    """Asks for things, at random, and remembers what it was told."""

    def __init__(self, lab: Any, seed: int) -> None:
        self._lab = lab
        self._random = random.Random(seed)
        self.model = Model(added={subnet: len(given) for subnet, given in lab.given.items()})
        self._marks = self._sizes = 0
        self._memory_mib = USUAL_MIB[lab.kind]
        self._full = self._went = False
        self._actions: dict[str, Callable[[Client], None]] = {
            "create": lambda client: self._create(client, self._image()),
            "twin": lambda client: self._create(client, self._image(forkable=True)),
            "destroy": lambda client: self._destroy(client),
            "start": lambda client: self._life(client, "start"),
            "stop": lambda client: self._life(client, "stop"),
            "reboot": lambda client: self._life(client, "reboot"),
            "change": self._change,
            "rewrite": self._rewrite,
            "move": self._move,
            "add-volume": self._add_volume,
            "delete-volume": self._delete_volume,
            "add-address": self._add_address,
            "add-spare": self._add_spare,
            "change-spare": self._change_spare,
            "empty-spare": self._empty_spare,
            "remove-spare": lambda client: client.call(given.NODE_REMOVE_SUBNET, {"subnet": SPARE.id}),
            "list": lambda client: client.call(api.VM_LIST),
        }
        self._waits: dict[str, Callable[[Client], bool]] = {
            "template": self._has_template,
            "member": lambda client: client.call(api.NODE_SHOW).pooled > 0,
        }

    # --- a schedule

    def run(self, fault: str, extra: int = 4) -> bool:
        """One agent with this fault. Whether it struck."""
        tally, lab = self._lab.tally, self._lab
        tally.schedules += 1
        self._full = False
        name, _, how = fault.partition(":")
        times, _, kind = how.partition(":")
        family = name.partition(".")[0]
        if prelude := PRELUDES.get(name, PRELUDES.get(family)):
            self.run(prelude, extra=0)
        if family == "exit":
            self._let_guests_go()
        if name in UPSET:
            UPSET[name](lab)
        self._memory_mib = USUAL_MIB[lab.kind]
        left = lab.on_disk()
        began = time.monotonic()
        agent = lab.start(fault, CONFIG.get(name, CONFIG.get(family, "plain")))
        if lab.serving(agent):
            tally.recoveries += 1
            tally.slowest_recovery_s = max(tally.slowest_recovery_s, time.monotonic() - began)
            try:
                self.settle(left)
            except Unreachable:
                assert agent.dead(5), "an agent that serves does not answer"
            road = ROADS.get(name, ROADS.get(family, ())) * int(times)
            self._play(agent, [*road, *self._random.choices(list(self._actions), k=extra)])
        if family == "pool" and not agent.dead():
            agent.end()
        struck = agent.dead(0.02)
        if kind:
            struck = self._full
            tally.full_disks[name] += struck
        else:
            tally.kills[name if struck else "between operations"] += 1
        agent.kill()
        return struck

    def _play(self, agent: Any, words: list[str]) -> None:
        with self._lab.client(timeout_s=20) as client:
            for word in words:
                if agent.dead():
                    return
                if word == "new-size":
                    self._sizes += 1
                    self._memory_mib = USUAL_MIB[self._lab.kind] + 1 + self._sizes % SIZES
                    continue
                self._lab.tally.operations[word] += word in self._actions
                try:
                    if word in self._waits:
                        self._await(client, word)
                        continue
                    self._actions[word](client)
                    self._lab.tally.acknowledged += 1
                except REFUSED:
                    continue
                except (Unreachable, TimedOut):
                    assert agent.dead(5), (
                        f"{word}: no answer from an agent that lives: {self._lab.last_words()}"
                    )
                    return
                except AtollError as error:
                    if "No space left" not in error.brief:
                        raise
                    self._full = True
                    # What a failure half-way left is told apart after the next start.
                    return

    def _await(self, client: Client, what: str) -> None:
        """Until the agent's background has come so far, or the agent is gone."""
        until = time.monotonic() + AWAIT_S
        while not self._waits[what](client):
            assert time.monotonic() < until, f"no {what} in {AWAIT_S:g} s: {self._lab.last_words()}"
            time.sleep(PAUSE_S)

    def _has_template(self, client: Client) -> bool:
        """There is one of the size that we create now, and all that there are can be forked."""
        ready = client.call(api.NODE_SHOW).templates
        kept = list(self._lab.state.glob("templates/*/template.json"))
        sizes = set()
        for path in kept:
            with contextlib.suppress(FileNotFoundError):
                sizes.add(json.loads(path.read_text())["spec"]["memory_mib"])
        return self._memory_mib in sizes and ready >= len(kept)

    def settle(self, left: dict[str, dict[str, Any]]) -> dict[str, VM]:
        """Compare what is found after a recovery with what was acknowledged; from then on that is what is known."""
        self._until_noted()
        model = self.model
        found: dict[str, VM] = self._lab.check(model.adding)
        for name in model.making:
            committed = name in left and left[name]["committed"] and left[name]["want"] != "gone"
            if not committed:
                assert name not in found, f"{name}: nobody was told of it, and it is there"
            elif name in found:
                states = LEGAL["guest"] if self._went else frozenset({"running"})
                model.vms[name] = Known(states, found[name].tags.get("mark", ""))
        self._went = False
        for name in list(model.vms):
            if name in model.going and name not in found:
                del model.vms[name]
        assert set(found) == set(model.vms), f"found {sorted(found)}, acknowledged {sorted(model.vms)}"
        for name, vm in found.items():
            known = model.vms[name]
            assert vm.state in known.states, f"{name} is {vm.state} ({vm.reason}), not one of {known.states}"
            assert vm.tags.get("mark", "") in (known.mark, known.maybe or known.mark), (
                f"{name}: a change was lost"
            )
            model.vms[name] = Known(frozenset({str(vm.state)}), vm.tags.get("mark", ""))
        model.making, model.going, model.adding = set(), set(), {}
        return found

    def _until_noted(self) -> None:
        """A guest whose end could not be noted, because the disk was full then, is shown as running for a while."""
        until = time.monotonic() + AWAIT_S
        with self._lab.client() as client:
            while shown := [
                vm.name for vm in client.call(api.VM_LIST) if vm.state == "running" and _gone(self._lab, vm)
            ]:
                assert time.monotonic() < until, f"shown as running: {shown}"
                time.sleep(PAUSE_S)

    def leave_nothing(self) -> None:
        """Destroy every VM: all addresses are free then, and the host is as it was."""
        with self._lab.client() as client:
            for name in list(self.model.vms):
                self._destroy(client, name)
        assert self._lab.check() == {}

    # --- what can be asked for

    def _image(self, *, forkable: bool | None = None) -> str:
        if self._lab.kind != "sim":
            return "appliance"
        return "twin" if forkable or (forkable is None and self._random.random() < 0.5) else "tiny"

    def _create(self, client: Client, image: str) -> None:
        free = [name for name in NAMES if name not in self.model.vms and name not in self.model.making]
        if not free:
            name = self._pick()
            self._destroy(client, name)
            free = [name]
        name = self._random.choice(free)
        # One with a disk is never forked.
        disks = (VolumeSpec(1),) if image == "tiny" and self._random.random() < 0.3 else ()
        credential = self._lab.credential if self._random.random() < 0.3 else None
        spec = VmSpec(
            name,
            image,
            driver=self._lab.kind,
            memory_mib=self._memory_mib,
            milli_cpus=50,
            volumes=disks,
            role="web" if credential else None,
        )
        user_data = b"#!x" if self._random.random() < 0.5 else b""
        wait, request_id = Wait("started", 20), uuid.uuid4().hex
        body = CreateVm(spec, user_data, wait, request_id, role_credential=credential)
        self.model.making.add(name)
        try:
            _last(client.stream(api.VM_CREATE, body=body))
        except REFUSED:
            self.model.making.discard(name)
            raise
        self.model.making.discard(name)
        self.model.vms[name] = Known(frozenset({"running"}), "")

    def _pick(self, *states: str) -> str:
        """A VM, in one of these states if there is any."""
        vms = self.model.vms
        fitting = [name for name in vms if not states or vms[name].states & set(states)]
        if not vms:
            raise NotFound("there is no VM")
        return self._random.choice(fitting or list(vms))

    def _destroy(self, client: Client, name: str = "") -> None:
        name = name or self._pick()
        self.model.going.add(name)
        was, self.model.vms[name].states = (
            self.model.vms[name].states,
            frozenset(LEGAL["start"] | {"destroying"}),
        )
        try:
            client.call(api.VM_DESTROY, {"vm": name})
        except REFUSED:
            self.model.vms[name].states = was
            self.model.going.discard(name)
            raise
        del self.model.vms[name]
        self.model.going.discard(name)

    def _life(self, client: Client, action: str) -> None:
        name = self._pick(*(DOWN if action == "start" else {"running"}))
        known = self.model.vms[name]
        was, known.states = known.states, known.states | LEGAL[action]
        try:
            if action == "stop":
                vm = client.call(api.VM_STOP, {"vm": name}, body=StopVm(self._grace_s()))
            else:
                route = api.VM_START if action == "start" else api.VM_REBOOT
                vm = _last(client.stream(route, {"vm": name}, body=Wait("started", 20)))
        except REFUSED:
            known.states = was
            raise
        known.states = frozenset({str(vm.state)})

    def _grace_s(self) -> float:
        # A guest that is still starting does not hear us, and waiting for it would show nothing.
        return self._random.choice((0, 5)) if self._lab.kind == "sim" else 0

    def _change(self, client: Client) -> None:
        name = self._pick()
        self._marks += 1
        known = self.model.vms[name]
        known.maybe = f"m{self._marks}"
        try:
            vm = client.call(changes.VM_CHANGE, {"vm": name}, body=ChangeVm(tags={"mark": known.maybe}))
        except REFUSED:
            known.maybe = None
            raise
        assert vm.tags["mark"] == known.maybe
        known.mark, known.maybe = known.maybe, None

    def _rewrite(self, client: Client) -> None:
        data = str(self._random.random()).encode()
        client.call(changes.VM_CHANGE, {"vm": self._pick()}, body=ChangeVm(user_data=data))

    def _move(self, client: Client) -> None:
        name = self._pick(*DOWN)
        now = client.call(api.VM_SHOW, {"vm": name}).subnet
        client.call(changes.VM_CHANGE, {"vm": name}, body=ChangeVm(subnet="lab" if now == "lan" else "lan"))

    def _add_volume(self, client: Client) -> None:
        named = {vm.name: {volume.name for volume in vm.volumes} for vm in client.call(api.VM_LIST)}
        free = [(vm, name) for vm, names in named.items() for name in ("red", "blue") if name not in names]
        if not free:
            raise NotFound("there is no VM without them")
        vm, name = self._random.choice(free)
        body = AddVolume(VolumeSpec(1, name), attach=self._random.random() < 0.5)
        _last(client.stream(volumes.VOLUME_ADD, {"vm": vm}, body=body))

    def _delete_volume(self, client: Client) -> None:
        having = [vm for vm in client.call(api.VM_LIST) if any(one.store for one in vm.volumes)]
        if having:
            vm = self._random.choice(having)
            volume = self._random.choice([one for one in vm.volumes if one.store])
            client.call(volumes.VOLUME_DELETE, {"vm": vm.name, "volume": volume.name})

    def _add_address(self, client: Client) -> None:
        subnet = self._random.choice(("lan", "lab"))
        if self.model.added[subnet] >= MOST_ADDRESSES:
            return
        number = self.model.added[subnet]
        self.model.added[subnet] += 1
        self.model.adding.setdefault(subnet, set()).add(self._lab.address(subnet, number))
        self._lab.add_address(client, subnet, number)

    def _add_spare(self, client: Client) -> None:
        # As it was left, or anew.
        if all(pool.subnet.id != SPARE.id for pool in client.call(api.NODE_SHOW).pools):
            client.call(api.NODE_ADD_SUBNET, body=SPARE)
        client.call(api.NODE_ADD_ADDRESS, body=api.AddAddress(SPARE.id, SPARE_ADDRESSES))

    def _change_spare(self, client: Client) -> None:
        self._marks += 1
        change = given.ChangeSubnet(domain=f"m{self._marks}.test", gateway=f"10.79.0.{1 + self._marks % 3}")
        client.call(given.NODE_CHANGE_SUBNET, {"subnet": SPARE.id}, body=change)

    def _empty_spare(self, client: Client) -> None:
        ips = tuple(address.ip for address in SPARE_ADDRESSES)
        client.call(given.NODE_REMOVE_ADDRESS, body=given.RemoveAddress(SPARE.id, ips))

    def _let_guests_go(self) -> None:
        """While there is no agent: every guest that runs powers off or dies."""
        for path in self._lab.state.glob("vms/*/sim/record.json"):
            record = json.loads(path.read_text())
            if record["exit"] is None:
                record["exit"] = self._random.choice(("powered-off", "crashed"))
                path.write_text(json.dumps(record))
        for path in self._lab.state.glob("vms/*/qemu/record.json"):
            for pid in processes.processes_in(self._lab.cloud.group(path.parent.parent.name)):
                os.kill(pid, signal.SIGKILL)
        self._went = True
        for known in self.model.vms.values():
            known.states |= LEGAL["guest"]


def _last(lines: Iterator[Any]) -> VM:
    *_, last = lines
    assert isinstance(last, Done)
    vm: VM = last.result
    return vm


def _gone(lab: Any, vm: VM) -> bool:
    """Nothing of this VM runs."""
    if vm.driver != "sim":
        return not processes.processes_in(lab.cloud.group(vm.ip))
    try:
        return json.loads((lab.state / "vms" / vm.ip / "sim/record.json").read_text())["exit"] is not None
    except FileNotFoundError:
        return True


def with_template(lab: Any) -> None:
    """A node that has a template, so that VMs are forks from now on."""
    agent = lab.recovered()
    player = Player(lab, 0)
    with lab.client() as client:
        player._create(client, player._image())
        until = time.monotonic() + 60
        while not list(lab.state.glob("templates/*/template.json")):
            assert time.monotonic() < until, "no template is made"
            time.sleep(0.05)
        player.leave_nothing()
    agent.kill()


def faults(names: Iterable[str], seed: int) -> Iterator[str]:
    """For ever: every step there is, in any order, for the first time or the second; full disks among them."""
    chance = random.Random(seed)
    names = sorted(names)
    while True:
        chance.shuffle(names)
        for name in names:
            once = name in ONCE or chance.random() < 0.7
            yield f"{name}:{1 if once else 2}"
            if name in FULL_DISK:
                yield f"{name}:{chance.randint(1, 5)}:ENOSPC"


@contextlib.contextmanager
def told(seed: int, number: int, fault: str) -> Iterator[None]:
    """A failure says how to see it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"schedule {number} of seed {seed}: {fault}")
        raise
