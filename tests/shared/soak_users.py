"""Users that do whatever comes to their minds to VMs of theirs, and often do not wait for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from atoll.api import hypervisor as api
from atoll.api.async_client import AsyncClient
from atoll.api.changes import VM_CHANGE, ChangeVm
from atoll.api.volumes import (
    VOLUME_ADD,
    VOLUME_CHANGE,
    VOLUME_DELETE,
    VOLUME_UPLOAD,
    AddVolume,
    ChangeVolume,
    UploadVolume,
)
from atoll.errors import AtollError
from atoll.model.vm import RestartPolicy, VmSpec
from atoll.model.volume import FileSystem, VolumeSpec
from soak_node import SIM_IMAGE, SoakNode, created

KINDS = {"sim": 0.85, "qemu": 0.08, "lxc": 0.07}
"""Which machines they create, how often."""
PATIENCE_S = 60.0
NAMES = 4
"""Of VMs that each user has."""
CUT_OFF = 0.2
"""So many calls are cut off by their caller, somewhere in the middle."""
CONTENT = b"of a disk " * 6554
FAULTY = {"internal", "malformed", "invalid", "denied", "unauthenticated"}
"""Answers that nobody has asked for."""


class User:
    """One of them. What was done is in its tally; answers that there must not be in `surprises`."""

    def __init__(self, name: str, node: SoakNode, client: AsyncClient, choice: random.Random) -> None:
        self.name = name
        self.tally: Counter[str] = Counter()
        self.surprises: list[str] = []
        self._node = node
        self._client = client
        self._choice = choice

    async def live(self) -> None:
        """For ever."""
        while True:
            act = self._choice.choices(list(ACTS), list(ACTS.values()))[0]
            await self.do(act)
            await asyncio.sleep(self._choice.uniform(0, 0.05))

    async def do(self, act: Act) -> None:
        cut_off = self._choice.random() < CUT_OFF
        limit_s = self._choice.uniform(0.002, 0.15) if cut_off else PATIENCE_S
        earlier = len(self._node.faults) - 1
        try:
            async with asyncio.timeout(limit_s):
                await act(self)
            self.tally[act.__name__] += 1
        except TimeoutError:
            self.tally["cut off"] += 1
            if not cut_off:
                self.surprises.append(f"{self.name}: {act.__name__} has not ended after {limit_s} s")
        except AtollError as error:
            self.tally[error.code] += 1
            # An agent that suffers a fault may say anything.
            if error.code in FAULTY and not any(self._node.faults[earlier:]):
                self.surprises.append(f"{self.name}: {act.__name__}: {error.code}: {error.brief}")
            if error.code == "unreachable":
                await asyncio.sleep(0.1)

    @property
    def _vm(self) -> dict[str, str]:
        """Some VM of ours, whether there is one of that name or not."""
        return {"vm": f"{self.name}-{self._choice.randrange(NAMES)}"}

    @property
    def _volume(self) -> dict[str, str]:
        return {**self._vm, "volume": self._choice.choice(("data", "more"))}

    async def create(self) -> None:
        kind = self._choice.choices(list(KINDS), list(KINDS.values()))[0]
        real = (
            {"memory_mib": 128, "milli_cpus": 60} if kind != "sim" else {"memory_mib": 16, "milli_cpus": 10}
        )
        volumes = (VolumeSpec(4, "data"),) if self._choice.random() < 0.2 else ()
        spec = VmSpec(
            self._vm["vm"],
            SIM_IMAGE if kind == "sim" else "appliance",
            driver=kind,
            volumes=volumes,
            restart=self._choice.choice(list(RestartPolicy)),
            **real,
        )
        wait = api.Wait("started", 30)
        await created(self._client, api.CreateVm(spec, self._choice.randbytes(200), wait))
        self.tally[f"create {kind}"] += 1

    async def destroy(self) -> None:
        await self._client.call(api.VM_DESTROY, self._vm)

    async def stop(self) -> None:
        await self._client.call(api.VM_STOP, self._vm, body=api.StopVm(self._choice.choice((0, 0.3))))

    async def start(self) -> None:
        await drained(self._client.stream(api.VM_START, self._vm, body=api.Wait("started", 20)))

    async def reboot(self) -> None:
        await drained(self._client.stream(api.VM_REBOOT, self._vm, body=api.Wait("started", 20)))

    async def change(self) -> None:
        tags = {f"key{self._choice.randrange(3)}": self._choice.choice(("a", "b", None))}
        change = ChangeVm(tags=tags, user_data=self._choice.randbytes(100))
        await self._client.call(VM_CHANGE, self._vm, body=change)

    async def add_volume(self) -> None:
        fs = self._choice.choice(list(FileSystem))
        volume = AddVolume(VolumeSpec(8, self._volume["volume"], fs=fs), attach=self._choice.random() < 0.5)
        await drained(self._client.stream(VOLUME_ADD, self._vm, body=volume))

    async def grow_volume(self) -> None:
        change = ChangeVolume(size_mib=self._choice.choice((8, 12)), attached=self._choice.random() < 0.5)
        await drained(self._client.stream(VOLUME_CHANGE, self._volume, body=change))

    async def delete_volume(self) -> None:
        await self._client.call(VOLUME_DELETE, self._volume)

    async def upload(self) -> None:
        stops = self._choice.random() < 0.3

        async def content() -> AsyncIterator[bytes]:
            yield CONTENT[:20000]
            await asyncio.sleep(0.02)
            if stops:
                raise ConnectionAbortedError("it goes away in the middle")
            yield CONTENT[20000:]

        query = UploadVolume(hashlib.sha256(CONTENT).hexdigest(), size_mib=1)
        with contextlib.suppress(ConnectionAbortedError):
            await self._client.upload(VOLUME_UPLOAD, self._volume, content(), query=query)

    async def type_on_a_console(self) -> None:
        async with self._client.connect(api.VM_CONSOLE, self._vm, query=api.Attach(take=True)) as console:
            with contextlib.suppress(ConnectionError):  # it ended at the other end
                for _ in range(3):
                    await console.send_bytes(b"echo hello\n")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(console.receive(), 0.05)

    async def watch_events(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._choice.uniform(0.1, 1.5)):
                await drained(self._client.stream(api.EVENTS, query=api.Since()))

    async def read_the_log(self) -> None:
        async for _ in self._client.download(api.VM_LOG, self._vm):
            pass

    async def look(self) -> None:
        await self._client.call(self._choice.choice((api.VM_LIST, api.NODE_SHOW)))


async def drained(lines: AsyncIterator[Any]) -> None:
    async for _ in lines:
        pass


Act = Callable[[User], Awaitable[None]]

ACTS: dict[Act, float] = {
    User.create: 10,
    User.destroy: 5,
    User.stop: 2,
    User.start: 3,
    User.reboot: 2,
    User.change: 2,
    User.add_volume: 2,
    User.grow_volume: 1,
    User.delete_volume: 1,
    User.upload: 2,
    User.type_on_a_console: 2,
    User.watch_events: 1,
    User.read_the_log: 1,
    User.look: 2,
}
"""What users do, how often."""
