"""Every test of the suite runs on every kind of machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import container_labs
import machine_labs as labs
import private_engine as engine


@pytest.fixture(scope="session")
def boot_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return labs.make_boot_files(tmp_path_factory.mktemp("boot"))


@pytest.fixture(scope="session")
def appliance_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return labs.make_appliance_files(tmp_path_factory.mktemp("appliance"))


@pytest.fixture(scope="session")
def container_image(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return container_labs.make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def engine_socket() -> Iterator[Path]:
    with engine.private_engine() as socket:
        yield socket


@pytest.fixture(scope="session")
def podman_socket() -> Iterator[Path]:
    with engine.private_podman() as socket:
        yield socket


def make_lab(kind: str, request: pytest.FixtureRequest, directory: Path) -> Any:
    if kind == "sim":
        return labs.SimLab(directory)
    if os.geteuid() != 0:
        pytest.skip("real guests need root")
    if kind == "agent":
        return labs.AgentLab(directory, request.getfixturevalue("appliance_files"))
    if kind == "qemu":
        return labs.QemuLab(directory, request.getfixturevalue("boot_files"))
    image = request.getfixturevalue("container_image")
    if kind == "lxc":
        if shutil.which("lxc-start") is None:
            pytest.skip("there is no lxc-start: apt-get install lxc")
        return container_labs.LxcLab(directory, image)
    if kind == "podman":
        return container_labs.PodmanLab(
            directory, image, request.getfixturevalue("podman_socket"), engine.ask
        )
    return container_labs.DockerLab(directory, image, request.getfixturevalue("engine_socket"), engine.ask)


@pytest.fixture(name="make_lab")
def make_lab_fixture() -> Any:
    """For suites of those kinds that can do more."""
    return make_lab


@pytest.fixture
def opened() -> Any:
    return labs.opened


@pytest.fixture(params=["sim", "qemu", "lxc", "docker", "podman"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    chosen = make_lab(request.param, request, tmp_path)
    async with labs.opened(chosen) as lab:
        yield lab


@pytest.fixture
def exits() -> Any:
    return labs.Exits()


@pytest.fixture
def new_exits() -> Any:
    """What a second driver, of the next agent, reports."""
    return labs.Exits()
