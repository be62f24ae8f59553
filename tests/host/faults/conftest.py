"""Nodes whose agents die: one of simulated machines, one of real guests."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import private_engine as engine

REPORT = os.environ.get("ATOLL_RELIABILITY")
"""A file for the figures of these tests: `make reliability` makes a page of them."""


def _load(name: str) -> ModuleType:
    # Test modules cannot import one another by name.
    qualified = f"faults_{name}"
    if qualified not in sys.modules:
        spec = importlib.util.spec_from_file_location(qualified, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


lab = _load("lab")
schedules = _load("schedules")


@pytest.fixture(scope="session")
def playing() -> ModuleType:
    """How schedules are played with real agents."""
    return schedules


def _opened(
    making_cloud: Callable[[Path], AbstractContextManager[Any]], images: Path, kind: str, **more: Any
) -> Iterator[Any]:
    with making_cloud(images) as cloud:
        cloud("up")
        cloud("down")
        with lab.Lab(cloud, kind, more).open() as opened:
            yield opened


@pytest.fixture(scope="session")
def sim_lab(making_cloud: Any, images: Path) -> Iterator[Any]:
    yield from _opened(making_cloud, images, "sim")


@pytest.fixture(scope="session")
def qemu_lab(making_cloud: Any, images: Path) -> Iterator[Any]:
    yield from _opened(making_cloud, images, "qemu")


@pytest.fixture(scope="session")
def engine_socket() -> Iterator[Path]:
    with engine.private_engine() as socket:
        yield socket


@pytest.fixture(scope="session")
def docker_lab(making_cloud: Any, images: Path, engine_socket: Path) -> Iterator[Any]:
    yield from _opened(making_cloud, images, "docker", container_engine=str(engine_socket))


@pytest.fixture
def docker_node(docker_lab: Any) -> Iterator[Any]:
    """A node of containers, without an agent. Empty again afterwards."""
    yield docker_lab
    docker_lab.empty()


@pytest.fixture
def sim_node(sim_lab: Any) -> Iterator[Any]:
    """A node of simulated machines on real bridges, without an agent. Empty again afterwards."""
    yield sim_lab
    sim_lab.empty()


@pytest.fixture
def qemu_node(qemu_lab: Any) -> Iterator[Any]:
    """A node of real guests, without an agent. Empty again afterwards."""
    yield qemu_lab
    qemu_lab.empty()


@pytest.fixture(scope="session")
def note() -> Callable[[str, Any], None]:
    """Keep the figures of a test, if somebody wants them."""

    def note(name: str, figures: Any) -> None:
        if REPORT is None:
            return
        path = Path(REPORT)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, name: figures}, indent=2, sort_keys=True) + "\n")

    return note
