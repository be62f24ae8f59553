"""A lab for real guests, the same that the contract suite of machine drivers uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import container_labs
import machine_labs as labs
import private_engine as engine
from atoll.model.vm import MachineType


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
