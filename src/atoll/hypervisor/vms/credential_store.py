"""The long-lived credentials that VMs were created with, each sealed in its VM's directory.

Effects: files, written and read by a thread. A credential is bound to the instance id of its VM: the VM's directory can
move with it, and its file is of no use in that of another. It goes with the directory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from atoll.errors import AtollError, HostFailure
from atoll.model.long_lived import MAX_PEM, LongLivedCredential
from atoll.model.vm import VM
from atoll.serving.vault import Vault
from atoll.system import aside, files

NAME = "role-credential"


class CredentialStore:
    def __init__(self, vault: Vault, directory: Callable[[str], Path]) -> None:
        """`directory` is that of the VM at an address."""
        self._vault = vault
        self._directory = directory

    async def write(self, vm: VM, credential: LongLivedCredential) -> None:
        """On disk when this returns."""
        await aside.run(self._write, vm, credential)

    def _write(self, vm: VM, credential: LongLivedCredential) -> None:
        sealed = self._vault.seal(msgspec.json.encode(credential), _of(vm))
        files.write_durably(self._directory(vm.ip) / NAME, sealed)

    async def read(self, vm: VM) -> LongLivedCredential:
        return await aside.run(self._read, vm)

    def _read(self, vm: VM) -> LongLivedCredential:
        path = self._directory(vm.ip) / NAME
        try:
            opened = self._vault.open(files.read_limited(path, 2 * MAX_PEM), _of(vm))
            return msgspec.json.decode(opened, type=LongLivedCredential)
        except OSError as error:
            why = (error.strerror or "it cannot be read").lower()
        except AtollError as error:
            why = error.brief
        except msgspec.MsgspecError:
            # Not what it says: that may quote the secret.
            why = "it does not hold one"
        raise HostFailure(f"opening {path}: {why}", hint="create the VM again with a credential of its role")


def _of(vm: VM) -> str:
    return f"{NAME} of {vm.instance_id}"
