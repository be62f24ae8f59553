"""What a VM is given that guests of its image do nothing with: refused, or said. Pure.

An image declares what its guests honour (`Image.honours`). Of one that does not say nothing is refused.
"""

from __future__ import annotations

from atoll.errors import Conflict
from atoll.model.hardware import Netboot
from atoll.model.image import Ability, Image
from atoll.model.share import tag_of
from atoll.model.vm import VM, ConsoleKind

SCRIPT = b"#!"
CLOUD_CONFIG = (
    b"#cloud-config",
    b"#include",
    b"#upstart-job",
    b"#cloud-boothook",
    b"#part-handler",
    b"## template:",
)
"""How user data begins that cloud-init alone understands; scripts it runs too."""


def check_honoured(vm: VM, image: Image, user_data: bytes) -> None:
    """Conflict for what its owner would wait for in vain. `user_data` is what it is given now, if anything."""
    if vm.ssh_keys and _lacks(image, Ability.SSH_KEYS):
        raise Conflict(
            f"VM {vm.name}: SSH keys: guests of image {image.name} have no SSH server",
            hint="leave them out; there is a console: atoll vm console",
        )
    if user_data.startswith(CLOUD_CONFIG) and _lacks(image, Ability.CLOUD_INIT):
        kind = user_data.split(None, 1)[0].decode(errors="replace")
        raise Conflict(
            f"VM {vm.name}: user data: guests of image {image.name} have no cloud-init, which is for {kind}",
            hint="give a script, which begins with #!" if _runs_scripts(image) else "leave it out",
        )
    if user_data.startswith(SCRIPT) and image.honours is not None and not _runs_scripts(image):
        raise Conflict(
            f"VM {vm.name}: user data: guests of image {image.name} run no scripts", hint="leave it out"
        )


def remarks(vm: VM, image: Image, user_data: bytes, *, own_kernel: bool = False) -> tuple[str, ...]:
    """What is as it was asked for, and may not be what was meant. `own_kernel`: its guest has one, and mounts folders
    by itself."""
    found = []
    if user_data and not user_data.startswith((SCRIPT, *CLOUD_CONFIG)) and _lacks(image, Ability.CLOUD_INIT):
        found.append(
            "its user data is no script (#!), so nothing is run; programs in it can read it as metadata"
        )
    if vm.console is ConsoleKind.VNC and _lacks(image, Ability.SCREEN):
        found.append(f"guests of image {image.name} draw nothing on a screen; their console is serial")
    mounted = not _lacks(image, Ability.SHARES) and vm.netboot is Netboot.NEVER
    if vm.shares and own_kernel and not mounted:
        first = vm.shares[0]
        found.append(
            "its guest has to mount its folders itself, as root:"
            f" mkdir -p {first.path}; mount -t virtiofs {tag_of(first.name)} {first.path}"
        )
    return tuple(found)


def check_ssh(vm: VM, image: Image) -> None:
    """Conflict where nobody can log in by a certificate of the cloud. Guests with cloud-init are set up by it."""
    if _lacks(image, Ability.SSH_CERTIFICATES) and _lacks(image, Ability.CLOUD_INIT):
        raise Conflict(
            f"VM {vm.name}: guests of image {image.name} have no SSH server that trusts this cloud",
            hint=f"use: atoll vm shell {vm.name}",
        )


def _runs_scripts(image: Image) -> bool:
    return not (_lacks(image, Ability.SCRIPT) and _lacks(image, Ability.CLOUD_INIT))


def _lacks(image: Image, ability: Ability) -> bool:
    return image.honours is not None and ability not in image.honours
