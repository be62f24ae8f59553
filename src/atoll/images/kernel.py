"""What is inside a Linux kernel package: modules in their order, the kernel behind its decompressor. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.images import elf

# The setup header of a bzImage (Documentation/x86/boot.rst of the kernel).
_SETUP_SECTORS_AT = 0x1F1
_HEADER_MAGIC_AT = 0x202
_PROTOCOL_AT = 0x206
_PAYLOAD_AT = 0x248
_SECTOR = 512

_COMPRESSIONS = {
    b"\x02\x21\x4c\x18": "lz4",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
}


def module_name(file_name: str) -> str:
    """The kernel's name of a module: `-` and `_` are one to it, and modules name each other with `_`."""
    return file_name.removesuffix(".ko").replace("-", "_")


def dependencies(module: bytes) -> tuple[str, ...]:
    """The names of the modules that must be loaded before this one, as the module says.

    `modules.dep` says it too, but is made when a kernel package is installed, which we never do.
    """
    try:
        info = elf.section(module, ".modinfo")
    except elf.NotElf as error:
        raise HostFailure(f"reading a kernel module: {error}", hint=_REMEDY) from None
    if info is None:
        raise HostFailure("reading a kernel module: it has no section .modinfo", hint=_REMEDY)
    for field in info.split(b"\0"):
        key, _, value = field.partition(b"=")
        if key == b"depends":
            names = value.decode("ascii", "replace").split(",")
            return tuple(module_name(name) for name in names if name)
    return ()


def load_order(wanted: Sequence[str], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """The wanted modules, in this order, each after all that it depends on. `read` gives a module by name."""
    ordered: dict[str, bytes] = {}

    def take(name: str, above: tuple[str, ...]) -> None:
        if name in ordered:
            return
        if name in above:
            raise HostFailure(f"ordering kernel modules: a circle: {' needs '.join((*above, name))}")
        module = read(name)
        for dependency in dependencies(module):
            take(dependency, (*above, name))
        ordered[name] = module

    for name in wanted:
        take(name, ())
    return ordered


class Payload(Struct, frozen=True):
    """The kernel inside a bzImage: how it is compressed, its compressed bytes, how many it unpacks to."""

    compression: str
    data: bytes
    size: int


def payload(image: bytes) -> Payload:
    """What a bzImage unpacks when it is started."""
    if len(image) < _PAYLOAD_AT + 8 or image[_HEADER_MAGIC_AT : _HEADER_MAGIC_AT + 4] != b"HdrS":
        raise _not_a_kernel("no setup header")
    if struct.unpack_from("<H", image, _PROTOCOL_AT)[0] < 0x208:
        raise _not_a_kernel("its boot protocol is older than 2.08")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD_AT)
    # A count of 0 means 4, and the boot sector comes before them.
    begin = ((image[_SETUP_SECTORS_AT] or 4) + 1) * _SECTOR + offset
    data = image[begin : begin + length]
    if len(data) != length or length < 4:
        raise _not_a_kernel("cut short")
    # gzip ends with the size; to what the others make, the kernel's build appends it.
    (size,) = struct.unpack_from("<I", data, length - 4)
    for magic, name in _COMPRESSIONS.items():
        if data.startswith(magic):
            return Payload(name, data if name == "gzip" else data[:-4], size)
    raise _not_a_kernel(f"compressed in an unknown way, beginning with {data[:4].hex() or 'nothing'}")


def check_vmlinux(data: bytes, size: int) -> bytes:
    """The data itself, if it is a kernel of that size."""
    if len(data) != size:
        raise _not_a_kernel(f"{len(data)} bytes are inside, not {size}")
    if not elf.is_elf(data):
        raise _not_a_kernel("what is inside is not a 64-bit ELF file")
    return data


_REMEDY = "remove the kernel package from the cache and build again"


def _not_a_kernel(why: str) -> HostFailure:
    return HostFailure(f"unpacking the kernel: {why}", hint=_REMEDY)
