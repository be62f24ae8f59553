"""A lab for real guests, the same that the contract suite of machine drivers uses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.model.vm import MachineType

_LABS = Path(__file__).parents[2] / "contract/machine/labs.py"


def _load_labs() -> Any:
    # Test modules cannot import one another by name.
    if "machine_labs" not in sys.modules:
        spec = importlib.util.spec_from_file_location("machine_labs", _LABS)
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
