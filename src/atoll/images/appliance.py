"""The appliance: Debian's cloud kernel with a static agent as process 1 and busybox, in an initramfs.

Effects: runs the compiler, busybox and, through `packages`, apt; adds the image to a store. What goes into
the image and where is decided by the pure functions at the end. The same inputs give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.errors import HostFailure
from atoll.images import cpio, elf, kernel, packages, tar
from atoll.images.store import ImageStore
from atoll.model.image import Ability, DirectBoot, Image
from atoll.system import files, host, processes
from atoll.system.directory_lock import alone_in

NAME = "appliance"
BUILDER_VERSION = 6
HONOURS = (Ability.SCRIPT, Ability.SHARES)
GUEST = Path(__file__).parent / "guest"
BUSYBOX = Path("/bin/busybox")

# The kernel without its decompressor, which a machine starts through its PVH entry: 0.3 s less when every
# instruction is emulated. The price is that the kernel's address is not randomised (KASLR is the
# decompressor's work). False gives the bzImage.
UNPACK_KERNEL = True

# What the network needs comes first: the agent asks for an address as soon as there is an interface, and
# loads the rest later. virtio_mmio before virtio_pci, because it brings no other modules with it.
MODULES = (
    "virtio_net",
    "virtio_mmio",
    "virtio_pci",
    "button",
    "virtio_rng",
    "virtio_blk",
    "pvpanic_mmio",
    "virtio_console",
)
# Loaded only in guests that have folders of the host.
FOLDER_MODULES = ("virtiofs",)

# cryptomgr.notests: 0.25 s of self-tests under emulation. no_timer_check: on a busy host the test of the
# timer interrupt can fail where the timer does not. panic: what cannot go on ends instead of hanging.
# rcu_expedited: closing a packet socket waits for a grace period, 15 ms each, and a start closes several.
CMDLINE = (
    "console=ttyS0 quiet cryptomgr.notests no_timer_check random.trust_cpu=on panic=1"
    " rcupdate.rcu_expedited=1"
)

# Measured: 72 MiB is too little for the kernel, which takes 46 MiB for itself; 80 leaves 23 MiB to programs.
MIN_MEMORY_MIB = 80

CFLAGS = (
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-static",
    "-Os",
    "-s",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,--build-id=none",
)

BUILD_TIMEOUT_S = 900
WORKSHOP_MIB = 208
IMAGE_MIB = 80
"""What is needed while it is made, and what it takes afterwards; measured, and some more."""

Progress = Callable[[str], None]


def build(store: ImageStore, cache: Path, progress: Progress) -> Image:
    """The appliance in the store, made anew only when its inputs changed."""
    made = built(store, cache)
    if made is not None:
        return made
    recipe = _recipe(_busybox())
    with _workshop(cache) as workshop:
        package = packages.fetch_kernel(cache, progress)
        if store.origin(NAME) == origin(recipe, package.name):
            return store.get(NAME)
        progress(f"building the appliance from {package.name}")
        _make(workshop, package)
        return store.add(
            NAME,
            kinds=("qemu", "lxc", "docker"),
            boot=DirectBoot(kernel="kernel", initrd="initrd", cmdline=CMDLINE, loader_kernel="bzimage"),
            files={name: workshop / name for name in ("kernel", "initrd", "bzimage", "rootfs.tar")},
            rootfs="rootfs.tar",
            description="busybox and the Atoll guest agent on Debian's cloud kernel",
            min_memory_mib=MIN_MEMORY_MIB,
            ready="port:80",
            forkable=True,
            agent=True,
            imdsv2=True,
            honours=HONOURS,
            origin=origin(recipe, package.name),
        )


def built(store: ImageStore, cache: Path) -> Image | None:
    """The one that is there, unless it has to be made anew. HostFailure where it could not even be."""
    recipe = _recipe(_busybox())
    kept = packages.cached_kernel(cache)
    if kept is not None and store.origin(NAME) == origin(recipe, kept.name):
        return store.get(NAME)
    return None


def _make(workshop: Path, package: packages.Package) -> None:
    agent = _compile(workshop)
    kernel_image, modules, for_folders = _kernel_files(packages.unpack(package, workshop), package.name)
    applets = processes.run_blocking([str(BUSYBOX), "--list"]).stdout.decode().split()
    busybox = _busybox()
    files.write_durably(workshop / "kernel", _unpack_kernel(kernel_image) if UNPACK_KERNEL else kernel_image)
    files.write_durably(workshop / "bzimage", kernel_image)
    initrd = cpio.archive(root_files(agent, busybox, applets, modules, for_folders))
    files.write_durably(workshop / "initrd", initrd)
    rootfs = tar.archive(container_files(agent, busybox, applets))
    files.write_durably(workshop / "rootfs.tar", rootfs)


def _kernel_files(tree: Path, package: str) -> tuple[bytes, dict[str, bytes], dict[str, bytes]]:
    paths = {
        kernel.module_name(path.name): path for path in sorted(tree.glob("lib/modules/*/kernel/**/*.ko"))
    }
    images = sorted(tree.glob("boot/vmlinuz-*"))
    if not images:
        raise HostFailure(f"unpacking {package}: there is no kernel in it", hint="remove it from the cache")

    def read(name: str) -> bytes:
        if name not in paths:
            raise HostFailure(f"unpacking {package}: there is no module {name} in it")
        return paths[name].read_bytes()

    first = kernel.load_order(MODULES, read)
    more = {name: data for name, data in kernel.load_order(FOLDER_MODULES, read).items() if name not in first}
    return images[0].read_bytes(), first, more


def _unpack_kernel(image: bytes) -> bytes:
    found = kernel.payload(image)
    match found.compression:
        case "gzip":
            data = gzip.decompress(found.data)
        case "xz":
            data = lzma.decompress(found.data)
        case tool:  # lz4 and zstd, which the standard library does not know
            _require(tool, package=tool)
            data = processes.run_blocking([tool, "-d", "-c"], stdin=found.data, timeout_s=60).stdout
    return kernel.check_vmlinux(data, found.size)


def _compile(workshop: Path) -> bytes:
    _require("musl-gcc", package="musl-tools")
    sources = [path.name for path in _sources() if path.suffix == ".c"]
    program = workshop / "agent"
    processes.run_blocking(["musl-gcc", *CFLAGS, "-o", str(program), *sources], cwd=GUEST, timeout_s=120)
    return program.read_bytes()


def _require(tool: str, package: str) -> None:
    if host.find_tool(tool) is None:
        raise HostFailure(
            f"building the appliance: {tool} is missing", hint=f"install it: apt-get install {package}"
        )


def _sources() -> list[Path]:
    return sorted(path for path in GUEST.iterdir() if path.suffix in (".c", ".h"))


def _busybox() -> bytes:
    try:
        data = BUSYBOX.read_bytes()
        static = elf.is_static(data)
    except (OSError, elf.NotElf):
        static = False
    if not static:
        raise HostFailure(
            f"building the appliance: there is no static busybox at {BUSYBOX}",
            hint="install it: apt-get install busybox-static",
        )
    return data


def _recipe(busybox: bytes) -> str:
    return recipe({path.name: path.read_bytes() for path in _sources()}, busybox)


@contextmanager
def _workshop(cache: Path) -> Iterator[Path]:
    """A directory for one builder at a time, empty at first and gone afterwards."""
    directory = cache / ".workshop"
    files.make_dirs(cache, 0o755)
    with alone_in(directory, BUILD_TIMEOUT_S):
        for left in directory.iterdir():
            files.remove_tree(left)  # by a builder that was killed
        try:
            yield directory
        finally:
            files.remove_tree(directory)


def recipe(sources: Mapping[str, bytes], busybox: bytes) -> str:
    """All that the image depends on but the kernel, as one hash. Pure."""
    digest = hashlib.sha256()
    facts = (
        str(BUILDER_VERSION),
        str(UNPACK_KERNEL),
        CMDLINE,
        *MODULES,
        *FOLDER_MODULES,
        *CFLAGS,
        str(MIN_MEMORY_MIB),
        *HONOURS,
    )
    for part in facts:
        digest.update(part.encode() + b"\0")
    for name in sorted(sources):
        digest.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
    digest.update(busybox)
    return digest.hexdigest()


def origin(recipe: str, package: str) -> str:
    """What is remembered with the image, to know when to make it anew. Pure."""
    return f"{recipe} {package}"


def root_files(
    agent: bytes,
    busybox: bytes,
    applets: Sequence[str],
    modules: Mapping[str, bytes],
    for_folders: Mapping[str, bytes],
) -> list[cpio.Entry]:
    """The initial file system. `modules` are in the order in which they are to be loaded, and those `for_folders` after
    them, where there are any. Pure."""
    return [
        *_common_files(agent, busybox),
        cpio.symlink("bin/sh", "busybox"),
        # The agent makes links of the others when the first program runs.
        cpio.regular_file("lib/applets", "".join(f"{name}\n" for name in sorted(applets)).encode()),
        cpio.regular_file("lib/modules/load", _load_list(modules)),
        cpio.regular_file("lib/modules/load-folders", _load_list(for_folders)),
        *(cpio.regular_file(_module_path(name), data) for name, data in {**modules, **for_folders}.items()),
    ]


def _module_path(name: str) -> str:
    return f"lib/modules/{name}.ko"


def _load_list(modules: Mapping[str, bytes]) -> bytes:
    return "".join(f"/{_module_path(name)}\n" for name in modules).encode()


def container_files(agent: bytes, busybox: bytes, applets: Sequence[str]) -> list[cpio.Entry]:
    """The same for kinds that have the host's kernel: it is unpacked once, so all links are there. Pure."""
    names = sorted({"sh", *applets} - {"busybox"})
    return [
        *_common_files(agent, busybox),
        *(cpio.symlink(f"bin/{name}", "busybox") for name in names),
        # Where container engines look for what to start.
        cpio.symlink("sbin/init", "../init"),
    ]


def _common_files(agent: bytes, busybox: bytes) -> list[cpio.Entry]:
    return [
        *(cpio.directory(name) for name in ("dev", "etc", "proc", "run", "sys")),
        cpio.directory("root", 0o700),
        cpio.directory("tmp", 0o1777),
        cpio.regular_file("init", agent, 0o755),
        # The agent by another name: guest/disks.c.
        cpio.symlink("sbin/resize2fs", "../init"),
        cpio.regular_file("bin/busybox", busybox, 0o755),
        cpio.regular_file("etc/passwd", b"root::0:0:root:/root:/bin/sh\n"),
        cpio.regular_file("etc/group", b"root:x:0:\n"),
        cpio.regular_file("etc/hosts", b"127.0.0.1 localhost\n"),
        cpio.regular_file("etc/profile", b"export PS1='\\h:\\w\\$ '\n"),
    ]
