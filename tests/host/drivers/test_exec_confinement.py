"""What a command in a container has, and what a hostile guest gets of the one that enters: nothing but its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import container_labs
import machine_labs as labs
from atoll.drivers.machine.base import Machine, Output
from atoll.errors import Conflict
from atoll.model.command import Command, Size
from atoll.system import processes

FIELDS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Seccomp", "NoNewPrivs", "Uid", "Gid", "Groups")

# A process of the guest's root that looks at every other one as fast as it can, and keeps what it should not see.
SPY = """
busybox mkdir -p /spy
while [ ! -e /spy/stop ]; do
    for each in /proc/[0-9]*; do
        program=$(busybox readlink $each/exe) || continue
        case $program in /bin/busybox) ;; *) echo "exe $program" >>/spy/seen ;; esac
        busybox ls -l $each/fd 2>/dev/null | busybox grep -E 'anon_inode|/usr|/sys|python' >>/spy/seen
        busybox grep -a -l PYTHON $each/environ $each/mem 2>/dev/null >>/spy/seen
    done
    echo round >>/spy/rounds
done
"""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Any]:
    image = container_labs.make_image(tmp_path)
    async with labs.opened(container_labs.LxcLab(tmp_path / "lab", image)) as lab:
        yield lab


@pytest.fixture
async def guest(lab: Any) -> tuple[Any, Machine]:
    driver, machine = lab.driver(labs.Exits()), lab.machine()
    await driver.start(machine)
    await lab.booted(machine)
    return driver, machine


async def run(guest: tuple[Any, Machine], script: str, **more: Any) -> str:
    driver, machine = guest
    process = await driver.exec(machine, Command(("/bin/sh", "-c", script), **more))
    text = b""
    async with asyncio.timeout(30):
        while isinstance(come := await process.read(), Output):
            text += come.data
    await process.close()
    return text.decode(errors="replace")


def fields(status: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in status.splitlines())
    return {name: value.split("#")[0].strip() for name, _, value in pairs if name in FIELDS}


async def test_a_command_has_the_rights_of_its_containers_first_process(guest: Any, lab: Any) -> None:
    init = lab.init(guest[1])
    seen = fields(await run(guest, 'while read -r line; do echo "$line"; done </proc/self/status'))
    wanted = fields(Path(f"/proc/{init.pid}/status").read_text())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Seccomp", "NoNewPrivs"):
        assert seen[name] == wanted[name], name
    assert seen["Seccomp"] == "2"
    assert seen["Uid"].split() == seen["Gid"].split() == ["0"] * 4
    assert "0" in seen["Groups"].split() or not seen["Groups"]


async def test_a_command_is_in_all_namespaces_and_the_cgroup_of_its_machine(guest: Any, lab: Any) -> None:
    driver, machine = guest
    process = await driver.exec(machine, Command(("/bin/busybox", "sleep", "60")))
    init = lab.init(machine)
    until = asyncio.get_running_loop().time() + 10
    while not (found := [pid for pid in processes.processes_in(machine.cgroup) if _is(pid, b"sleep\x0060")]):
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.02)

    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        of = [Path(f"/proc/{pid}/ns/{name}").readlink() for pid in (found[0], init.pid)]
        assert of[0] == of[1], name
    opened = {link.name for link in Path(f"/proc/{found[0]}/fd").iterdir()}
    assert opened == {"0", "1", "2"}
    assert (
        Path(f"/proc/{found[0]}/oom_score_adj").read_text()
        == Path(f"/proc/{init.pid}/oom_score_adj").read_text()
    )
    environ = Path(f"/proc/{found[0]}/environ").read_bytes().split(b"\0")
    assert {each.split(b"=")[0] for each in environ if each} == {
        *(b"PATH", b"HOME", b"USER", b"LOGNAME", b"SHELL", b"container")
    }
    await process.close()


def _is(pid: int, words: bytes) -> bool:
    try:
        return words in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def test_a_spy_in_the_guest_sees_nothing_of_those_who_enter(guest: Any) -> None:
    driver, machine = guest
    spy = await driver.exec(machine, Command(("/bin/sh", "-c", SPY)))
    try:
        for _ in range(25):
            assert await run(guest, "echo here") == "here\n"
    finally:
        await run(guest, "echo >/spy/stop")
        await spy.close()
    assert "round" in await run(guest, "busybox cat /spy/rounds")
    assert await run(guest, "busybox cat /spy/seen 2>/dev/null") == ""


async def test_a_guest_that_breaks_its_own_files_breaks_only_its_own_commands(guest: Any) -> None:
    await run(guest, "busybox mkfifo /etc/passwd; busybox mkfifo /etc/group")
    assert await run(guest, "echo still here") == "still here\n"
    await run(guest, "busybox rm /etc/passwd; echo 'joe:x:99999999999:1::/:/bin/sh' >/etc/passwd")
    with pytest.raises(Conflict, match="no possible number"):
        await run(guest, "true", user="joe")
    with pytest.raises(Conflict, match="has no user ann"):
        await run(guest, "true", user="ann")


async def test_a_terminal_that_is_none_is_not_touched(guest: Any) -> None:
    await run(guest, "busybox umount -l /dev/pts; busybox umount -l /dev/ptmx")
    await run(guest, "busybox rm -f /dev/ptmx; busybox mkfifo /dev/ptmx")
    with pytest.raises(Conflict):
        await run(guest, "true", terminal=Size())
    assert await run(guest, "echo still here") == "still here\n"


async def test_modules_that_a_guest_puts_where_ours_are_looked_for_are_not_run(guest: Any) -> None:
    where = str(Path(os.__file__).parent)
    names = "encodings/idna.py stringprep.py contextlib.py pwd.py traceback.py linecache.py tokenize.py"
    script = f"busybox mkdir -p {where}/encodings; for each in {names}; do"
    script += f' echo \'open("/pwned", "w")\' >{where}/$each; done'
    await run(guest, script)
    with pytest.raises(Conflict):
        await run(guest, "true", user="nobody-here")
    assert await run(guest, "[ -e /pwned ] || echo safe") == "safe\n"
