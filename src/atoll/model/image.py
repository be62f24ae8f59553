"""Images: what a VM is made from, and how it boots. Pure values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from atoll.errors import Invalid
from atoll.model.checks import ImageName, check_image, check_pattern

FILE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
MOST_WORDS = 128 << 10
MOST_DECLARED = 64
"""Volumes, and ports, that a container image may declare."""


class DirectBoot(Struct, frozen=True):
    """Kernel and initial file system handed straight to the machine: names of files in the image."""

    kernel: str
    initrd: str
    cmdline: str = ""
    loader_kernel: str = ""
    """The kernel for boot loaders, such as iPXE, where `kernel` is one that only machines of ours start."""

    def __post_init__(self) -> None:
        check_pattern("kernel", self.kernel, FILE_PATTERN, "a plain file name")
        if self.loader_kernel:
            check_pattern("loader_kernel", self.loader_kernel, FILE_PATTERN, "a plain file name")
        check_pattern("initrd", self.initrd, FILE_PATTERN, "a plain file name")
        check_pattern("cmdline", self.cmdline, r"[\x20-\x7e]{0,1024}", "at most 1024 printable characters")


class Firmware(StrEnum):
    """What starts the boot loader of a disk."""

    BIOS = "bios"
    UEFI = "uefi"
    EITHER = "either"


class DiskFormat(StrEnum):
    RAW = "raw"
    QCOW2 = "qcow2"


class DiskBoot(Struct, frozen=True, tag_field="kind", tag="disk"):
    """A disk with a boot loader of its own: the name of a file in the image."""

    disk: str
    firmware: Firmware = Firmware.EITHER
    format: DiskFormat = DiskFormat.RAW

    def __post_init__(self) -> None:
        check_pattern("disk", self.disk, FILE_PATTERN, "a plain file name")


class ContainerBoot(Struct, frozen=True, tag_field="kind", tag="container"):
    """A root tree without a kernel, and the program in it: what an OCI image says of itself."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    user: str = ""
    """As `name`, `uid`, or either with `:group`. Empty: root."""
    working_directory: str = "/"
    volumes: tuple[str, ...] = ()
    """Directories whose content is to outlive the root."""
    ports: tuple[str, ...] = ()
    """As `80/tcp`: what it listens on."""
    stop_signal: str = "SIGTERM"

    def __post_init__(self) -> None:
        words = (*self.entrypoint, *self.command, *self.environment, *self.environment.values())
        if sum(map(len, words)) > MOST_WORDS or any("\0" in word for word in words):
            raise Invalid(
                "command", self.command, f"with its environment must have at most {MOST_WORDS} bytes"
            )
        for name in self.environment:
            check_pattern("environment", name, r"[^=\x00-\x1f]{1,256}", "names without '='")
        check_pattern(
            "user", self.user, r"([A-Za-z0-9_.@-]{1,64}(:[A-Za-z0-9_.@-]{1,64})?)?", "user or user:group"
        )
        for place in (self.working_directory, *self.volumes):
            check_pattern("path", place, r"/[^\x00-\x1f]{0,1023}", "an absolute path")
        for port in self.ports:
            check_pattern("port", port, r"[1-9][0-9]{0,4}/(tcp|udp|sctp)", "such as 80/tcp")
        check_pattern("stop_signal", self.stop_signal, r"SIG[A-Z0-9+-]{2,12}|[1-9][0-9]?", "such as SIGTERM")
        if max(len(self.volumes), len(self.ports)) > MOST_DECLARED:
            raise Invalid("volumes", len(self.volumes), f"and ports must be at most {MOST_DECLARED}")


class Ability(StrEnum):
    """What guests of an image do with what they are given."""

    SCRIPT = "script"
    """They run user data that begins with #!."""
    CLOUD_INIT = "cloud-init"
    """They do as their user data says, in any of the forms that cloud-init knows."""
    SSH_KEYS = "ssh-keys"
    """They let those in who have one of the keys."""
    SSH_CERTIFICATES = "ssh-certificates"
    """They have an SSH server that trusts the cloud, and that the cloud vouches for: atoll vm ssh."""
    SHARES = "shares"
    """They mount the folders of their node at their places, also where they have a kernel of their own."""
    SCREEN = "screen"
    """They draw on a screen, if there is one."""


class Image(Struct, frozen=True):
    """A named, immutable set of files and how to boot them."""

    name: ImageName
    kinds: tuple[str, ...]
    boot: DirectBoot
    digest: str
    description: str = ""
    min_memory_mib: int = 64
    rootfs: str = ""
    """The root file system as a tar archive, a file of the image: what kinds without a kernel boot."""
    ready: str = "started"
    """The stage that tells that a guest of this image is of use; what `--wait-for` defaults to."""
    forkable: bool = False
    """Its guests can wait for their identity, so that a VM can begin as a copy of one that did."""
    agent: bool = False
    """Its guests have our agent: commands can be run in them also where they have a kernel of their own."""
    imdsv2: bool = False
    """Its guests get their metadata with tokens: VMs of it are given none without, unless they are to be."""
    honours: tuple[Ability, ...] | None = None
    """What else its guests can; None: nobody said."""

    def __post_init__(self) -> None:
        check_image("image", self.name)
        if not self.kinds:
            raise Invalid("kinds", self.kinds, "must name at least one kind of machine")
