from __future__ import annotations

import contextlib
import gzip
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import HostFailure
from atoll.images import kernel


def elf_with(sections: dict[str, bytes]) -> bytes:
    """The smallest ELF file that has these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    contents = {**sections, ".shstrtab": names}
    body = b""
    heads = [bytes(64)]
    for name, data in contents.items():
        head = struct.pack(
            "<IIQQQQ", names.index(b"\0" + name.encode() + b"\0") + 1, 1, 0, 0, 64 + len(body), len(data)
        )
        heads.append(head.ljust(64, b"\0"))
        body += data
    start = struct.pack("<5s35xQ10xHHH", b"\x7fELF\x02", 64 + len(body), 64, len(heads), len(heads) - 1)
    return start + body + b"".join(heads)


def module(*needs: str) -> bytes:
    info = f"license=GPL\0depends={','.join(needs)}\0retpoline=Y\0".encode()
    return elf_with({".text": b"\x90" * 7, ".modinfo": info})


def bzimage(payload: bytes, setup_sectors: int = 3, offset: int = 40) -> bytes:
    head = bytearray((setup_sectors + 1) * 512 + offset)
    head[0x1F1] = setup_sectors
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x206, 0x20F)
    struct.pack_into("<II", head, 0x248, offset, len(payload))
    return bytes(head) + payload + b"trailing bytes"


def test_dependencies_are_read_from_the_module() -> None:
    assert kernel.dependencies(module("virtio_ring", "virtio")) == ("virtio_ring", "virtio")
    assert kernel.dependencies(module()) == ()


@pytest.mark.parametrize("data", [b"", b"not a module", elf_with({".text": b""}), module("virtio")[:-100]])
def test_what_is_no_module_is_refused(data: bytes) -> None:
    with pytest.raises(HostFailure, match="reading a kernel module"):
        kernel.dependencies(data)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_damaged_module_is_refused_or_read_but_never_crashes(noise: bytes, at: int) -> None:
    sound = module("virtio_ring", "virtio")
    with contextlib.suppress(HostFailure):
        kernel.dependencies(sound[:at] + noise + sound[at + len(noise) :])


def test_a_module_comes_after_all_that_it_needs() -> None:
    modules = {
        "virtio_net": module("virtio", "net_failover"),
        "net_failover": module("failover"),
        "failover": module(),
        "virtio": module(),
        "button": module(),
    }
    order = kernel.load_order(["virtio_net", "button"], modules.__getitem__)
    assert list(order) == ["virtio", "failover", "net_failover", "virtio_net", "button"]


@given(st.data())
def test_any_graph_without_circles_loads(data: st.DataObject) -> None:
    names = [f"m{i}" for i in range(data.draw(st.integers(1, 10)))]
    needs = {
        name: data.draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else []
        for i, name in enumerate(names)
    }
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True))
    order = list(kernel.load_order(wanted, lambda name: module(*needs[name])))
    assert set(wanted) <= set(order)
    for name in order:
        assert all(order.index(need) < order.index(name) for need in needs[name])
    firsts = [order.index(name) for name in wanted if not any(name in needs[other] for other in order)]
    assert all(one < other for one, other in itertools.pairwise(firsts))


def test_a_circle_of_modules_is_named() -> None:
    with pytest.raises(HostFailure, match="a needs b needs a"):
        kernel.load_order(["a"], {"a": module("b"), "b": module("a")}.__getitem__)


@given(st.integers(1, 60), st.integers(0, 1000), st.binary(min_size=1, max_size=100))
def test_the_payload_is_found_wherever_it_lies(sectors: int, offset: int, content: bytes) -> None:
    packed = gzip.compress(content)
    found = kernel.payload(bzimage(packed, sectors, offset))
    assert (found.compression, found.data, found.size) == ("gzip", packed, len(content))


def test_a_count_of_no_setup_sectors_means_four() -> None:
    packed = gzip.compress(b"kernel")
    image = bytearray(bzimage(packed, setup_sectors=4))
    image[0x1F1] = 0
    assert kernel.payload(bytes(image)).data == packed


def test_the_appended_size_is_not_handed_to_the_decompressor() -> None:
    found = kernel.payload(bzimage(b"\x02\x21\x4c\x18" + b"blocks" + struct.pack("<I", 77)))
    assert (found.compression, found.data, found.size) == ("lz4", b"\x02\x21\x4c\x18blocks", 77)


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (b"", "no setup header"),
        (bytes(4096), "no setup header"),
        (bzimage(b"unknown!"), "unknown way"),
        (bzimage(gzip.compress(b"x" * 500))[:-40], "cut short"),
    ],
)
def test_what_is_no_kernel_is_refused_with_the_reason(image: bytes, why: str) -> None:
    with pytest.raises(HostFailure, match=why):
        kernel.payload(image)


def test_a_kernel_of_another_size_or_kind_is_refused() -> None:
    whole = elf_with({".text": b"code"})
    assert kernel.check_vmlinux(whole, len(whole)) == whole
    with pytest.raises(HostFailure, match="bytes are inside"):
        kernel.check_vmlinux(whole[:-1], len(whole))
    with pytest.raises(HostFailure, match="not a 64-bit ELF"):
        kernel.check_vmlinux(b"MZ", 2)
