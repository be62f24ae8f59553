"""A lab for real guests, the same that the contract suite of machine drivers uses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.model.vm import MachineType

_TESTS = Path(__file__).parents[2]


def _load(name: str, path: str) -> Any:
    # Test modules cannot import one another by name.
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _TESTS / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


labs = _load("machine_labs", "contract/machine/labs.py")
container_labs = _load("machine_container_labs", "contract/machine/container_labs.py")
engine = _load("private_engine", "engine.py")


@pytest.fixture(scope="session")
def boot_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return labs.make_boot_files(tmp_path_factory.mktemp("boot"))


@pytest.fixture
def kernel(boot_files: Any) -> Path:
    return Path(boot_files.kernel)


@pytest.fixture
async def lab(tmp_path: Path, boot_files: Any) -> AsyncIterator[Any]:
    async with labs.opened(labs.QemuLab(tmp_path, boot_files)) as lab:
        yield lab


@pytest.fixture
async def microvm_lab(tmp_path: Path, boot_files: Any) -> AsyncIterator[Any]:
    async with labs.opened(labs.QemuLab(tmp_path, boot_files, MachineType.MICROVM)) as lab:
        yield lab


@pytest.fixture
def exits() -> Any:
    return labs.Exits()


@pytest.fixture(scope="session")
def container_image(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return container_labs.make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def engine_socket() -> Iterator[Path]:
    with engine.private_engine() as socket:
        yield socket


@pytest.fixture
async def lxc_lab(tmp_path: Path, container_image: Any) -> AsyncIterator[Any]:
    async with labs.opened(container_labs.LxcLab(tmp_path, container_image)) as lab:
        yield lab


@pytest.fixture
async def docker_lab(tmp_path: Path, container_image: Any, engine_socket: Path) -> AsyncIterator[Any]:
    made = container_labs.DockerLab(tmp_path, container_image, engine_socket, engine.ask)
    async with labs.opened(made) as lab:
        yield lab
