"""Every test of the suite runs on every kind of machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest


def _load_labs() -> Any:
    # Test modules cannot import one another by name; the labs serve the host tests of drivers too.
    if "machine_labs" not in sys.modules:
        spec = importlib.util.spec_from_file_location("machine_labs", Path(__file__).with_name("labs.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["machine_labs"] = module
        spec.loader.exec_module(module)
    return sys.modules["machine_labs"]


labs = _load_labs()


@pytest.fixture(scope="session")
def boot_files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return labs.make_boot_files(tmp_path_factory.mktemp("boot"))


@pytest.fixture(params=["sim", "qemu"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "sim":
        chosen = labs.SimLab(tmp_path)
    elif os.geteuid() != 0:
        pytest.skip("real guests need root")
    else:
        chosen = labs.QemuLab(tmp_path, request.getfixturevalue("boot_files"))
    async with labs.opened(chosen) as lab:
        yield lab


@pytest.fixture
def exits() -> Any:
    return labs.Exits()


@pytest.fixture
def new_exits() -> Any:
    """What a second driver, of the next agent, reports."""
    return labs.Exits()
