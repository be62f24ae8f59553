"""What parts of a node are told by others that know nothing of them: drivers, servers of guests, the kernel.

Made first, so that whoever tells can be made before whoever listens. No effects.
"""

from __future__ import annotations

from atoll.drivers.machine.base import Exit
from atoll.serving.signals import Signal


class Signals:
    def __init__(self) -> None:
        self.exit: Signal[[str, Exit]] = Signal()
        """A machine ended: the VM's IP, and how."""
        self.stall: Signal[[str, bool]] = Signal()
        """A machine was paused for want of room, or goes on: the VM's IP, and which of the two."""
        self.reached: Signal[[str, str]] = Signal()
        """A guest reached a stage: the VM's IP, and the stage: dhcp or metadata."""
        self.link: Signal[[str | None, bool]] = Signal()
        """A link came or went: its name, None for any; and whether it is there."""
        self.folder: Signal[[str]] = Signal()
        """A machine may have lost a folder: the VM's IP."""
        self.template: Signal[[]] = Signal()
        """There is one more template that VMs can be forked from."""
