"""The life of a machine by our pages: install, the first VM, a service, an upgrade, the end. Their commands are run."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.host.install.conftest import DEPENDENCIES, ROOT, new_machine, wheel_of

import atoll
from atoll.model.vm import VM
from doc_pages import DOCS, missing, steps_of

if TYPE_CHECKING:
    from tests.host.install.conftest import Machine

STATE = "/var/lib/atoll"
UNIT = "/etc/systemd/system/atoll.service"
PACKAGES = "/opt/atoll/lib/python{}.{}/site-packages".format(*sys.version_info[:2])
# There is no package index here: what atoll depends on, and is built with, is that of the tests.
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}

pytestmark = pytest.mark.timeout(300)


def older_source(place: Path) -> Path:
    """The tree as a version before this one, which knows the first format of records only."""
    source = place / "older"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    about = source / "src/atoll/__init__.py"
    text = about.read_text()
    now = (f'__version__ = "{atoll.__version__}"', f"RECORD_FORMAT = {atoll.RECORD_FORMAT}")
    assert all(one in text for one in now)
    about.write_text(text.replace(now[0], '__version__ = "0.0.9"').replace(now[1], "RECORD_FORMAT = 1"))
    return source


@pytest.fixture(scope="module")
def story(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    place = tmp_path_factory.mktemp("story")
    # By the program of the tests: that of the machine may be gone, or half of it there.
    clean = [str(Path(sys.executable).with_name("atoll")), "down", "--destroy", "--yes"]
    with new_machine(place, clean) as machine:
        yield Story(machine, wheel, place)


class Story:
    """One machine, page after page."""

    def __init__(self, machine: Machine, wheel: Path, place: Path) -> None:
        self.machine = machine
        # Directories of its own, outside of what stands for the machine's disks.
        self.place = place.with_name(f"{place.name}-files")
        self.place.mkdir()
        source = older_source(self.place)
        old = self.place / "old"
        old.mkdir()
        wheel_of(source, old)
        self._told = {
            "SOURCE": str(source),
            "OLD": str(old),
            "NEW": str(wheel.parent),
            "HOME": str(self.place),
        }
        self.before = machine.snapshot()

    def tell(self, page: str) -> None:
        for step in steps_of((DOCS / page).read_text()):
            self._borrow_dependencies()
            done = self.machine.run(
                *("sh", "-c", f"cd {self.place} && exec 2>&1 && {step.command}"),
                check=False,
                **OFFLINE,
                **self._told,
            )
            said = f"{page}: $ {step.command}\n{done.stdout}{done.stderr}"
            assert (done.returncode != 0) == step.refused, f"exit status {done.returncode}: {said}"
            assert "Traceback" not in done.stdout, said
            assert not missing(step, done.stdout), f"the page shows {missing(step, done.stdout)!r}: {said}"

    def _borrow_dependencies(self) -> None:
        packages = self.machine.root(PACKAGES)
        if packages.is_dir():
            (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")

    def atoll(self, *words: str) -> str:
        return self.machine.run("/opt/atoll/bin/atoll", *words).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.atoll(*words, "-o", "json"))

    def guests(self) -> set[int]:
        """The processes of VMs. A template that is being made beside them has a group of its own."""
        groups = tuple(f"/qemu/{place.name}" for place in self.machine.root(f"{STATE}/node/vms").iterdir())
        found = set()
        for place in self.machine.root("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if any(line.endswith(groups) for line in (place / "cgroup").read_text().splitlines()):
                    found.add(int(place.name))
        return found


def test_a_machine_is_made_a_cloud_by_the_pages_and_back(story: Story) -> None:
    story.tell("install.md")
    assert "atoll 0.0.9 (records of format 1," in story.atoll("--version")
    story.tell("first-vm.md")
    guests = story.guests()
    assert len(guests) == 1
    story.tell("service.md")
    assert story.guests() == guests  # whatever became of the agent
    runs_as_the_unit_says(story)
    assert story.guests() == guests
    as_the_first_version_wrote(story)
    story.atoll("up", "-q")
    assert story.guests() == guests
    story.tell("upgrade.md")
    left = story.machine.snapshot()
    # What systemd's own check leaves is none of ours.
    left["files"] = [path for path in left["files"] if not path.startswith("/run/systemd/")]
    assert left == story.before


def runs_as_the_unit_says(story: Story) -> None:
    """Systemd does not run here; what it would start does, is told of, and ends as it would be ended."""
    story.atoll("service", "install")
    lines = story.machine.root(UNIT).read_text().splitlines()
    (command,) = [line.removeprefix("ExecStart=").split() for line in lines if line.startswith("ExecStart=")]
    assert story.machine.root("/etc/systemd/system/multi-user.target.wants/atoll.service").is_symlink()
    address = str(story.place / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        with story.machine.start(*command, NOTIFY_SOCKET=address) as service:
            try:
                assert manager.recv(64) == b"READY=1"
                status = story.json("status")
                assert (status["agent"], status["vms"]) == ("up", {"running": 1})
                story.machine.run("kill", "-TERM", str(status["keeper"]))
                service.communicate(timeout=60)
            except BaseException:
                service.kill()
                raise
    assert service.returncode == 0


def as_the_first_version_wrote(story: Story) -> None:
    """Records without any field that they can be read without."""
    (path,) = story.machine.root(f"{STATE}/node/vms").glob("*/vm.json")
    record = json.loads(path.read_text())
    optional = {
        field.encode_name: msgspec.to_builtins(field.default)
        for field in msgspec.structs.fields(VM)
        if field.default is not msgspec.NODEFAULT
    }
    vm = record["vm"]
    record["vm"] = {
        name: value for name, value in vm.items() if name not in optional or value != optional[name]
    }
    assert len(record["vm"]) < len(vm)
    record = {name: value for name, value in record.items() if name not in ("format", "needs_format")}
    path.write_text(json.dumps(record))
