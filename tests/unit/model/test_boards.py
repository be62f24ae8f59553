from __future__ import annotations

import pytest

from atoll.errors import Invalid
from atoll.model.share import ShareMount
from atoll.model.vm import ConsoleKind, MachineType, VmSpec


def test_a_vm_has_a_serial_console_unless_it_says_otherwise():
    assert VmSpec(name="web", image="tiny").console is ConsoleKind.SERIAL


@pytest.mark.parametrize("board", [MachineType.AUTO, MachineType.Q35])
def test_a_board_with_a_bus_can_have_a_screen(board: MachineType):
    VmSpec(name="web", image="tiny", machine_type=board, console=ConsoleKind.VNC)


def test_a_microvm_has_no_screen():
    with pytest.raises(Invalid, match="microvm has no screen") as refusal:
        VmSpec(name="web", image="tiny", machine_type=MachineType.MICROVM, console=ConsoleKind.VNC)
    assert refusal.value.hint == "choose q35"


def test_a_microvm_has_no_folders():
    with pytest.raises(Invalid, match="microvm has no shared folders") as refusal:
        VmSpec(
            name="web",
            image="tiny",
            machine_type=MachineType.MICROVM,
            shares=(ShareMount("data", "/data"),),
        )
    assert refusal.value.hint == "choose q35"
