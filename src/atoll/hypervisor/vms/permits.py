"""Leave to do something to one VM: for this very VM, and only as long as whoever has it may.

Pure. A call can wait, for its turn or for a client's bytes: meanwhile its VM can go, another one can get the address,
or the caller can lose it. So what a call holds is not an address, and it is asked again before anything is done.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from atoll.model.vm import VM


class Permit(Struct, frozen=True):
    vm: VM
    """As it was when leave was given. Its instance id says which one it is, whatever has changed since."""
    check: Callable[[VM], None]
    """Denied when whoever has the permit may not do it to this VM, as it is now."""
