"""A peer of a cold create: libvirt, where it is installed, with the guest of raw QEMU.

    namespace ── tap0: gateway, 169.254.169.254, DHCP ═══ QEMU ── libvirtd ── virsh create

Libvirtd is the bench's own: it has its own sockets, settings and state, and no networks. Effects: a network
namespace, a tap, a libvirtd and its QEMU processes, all removed at the end.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from apart import apart, last_words
from raw_qemu import LINK, Boot, RawGuest, answered, tap_place

from atoll.drivers.machine.base import Machine
from atoll.drivers.machine.qemu import argv

NAME = "raw"
PLACES = {
    "etc": "/etc/libvirt",
    "lib": "/var/lib/libvirt",
    "cache": "/var/cache/libvirt",
    "log": "/var/log/libvirt",
}

# A KVM that root may open and QEMU's user may not would make libvirtd look at QEMU anew for every request.
MOUNTS = """
mount -t sysfs none /sys
mount -t tmpfs none /run
if test -c /dev/kvm; then
    mknod -m 0666 /run/kvm c 10 232
    mount --bind /run/kvm /dev/kvm
fi
""" + "\n".join(f'mount --bind "$0/{ours}" {theirs}' for ours, theirs in PLACES.items())

# Groups and profiles would be the host's own, outside of any namespace.
QEMU_CONF = """
cgroup_controllers = []
security_driver = "none"
stdio_handler = "file"
"""

DAEMON_CONF = """
unix_sock_dir = "{directory}/sockets"
unix_sock_rw_perms = "0700"
unix_sock_ro_perms = "0700"
auth_unix_rw = "none"
auth_unix_ro = "none"
"""

DOMAIN = """
<domain type='{kind}'>
  <name>{name}</name>
  <memory unit='MiB'>{machine.memory_mib}</memory>
  <memoryBacking><nosharepages/></memoryBacking>
  <vcpu>{machine.vcpus}</vcpu>
  <os>
    <type arch='x86_64' machine='{board}'>hvm</type>
    <kernel>{directory}/kernel</kernel>
    <initrd>{directory}/initrd</initrd>
    <cmdline>{cmdline}</cmdline>
  </os>
  <features><acpi/><vmport state='off'/><smm state='off'/>{features}</features>
  <cpu mode='{cpu}'/>
  <clock offset='utc'><timer name='hpet' present='no'/></clock>
  <devices>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='{directory}/console.log'/></serial>
    <interface type='ethernet'>
      <mac address={mac}/>
      <target dev='{link}' managed='no'/>
      <model type='virtio'/>
      <driver name='qemu'/>
      <mtu size='{machine.nic.mtu}'/>
      <rom enabled='no'/>
    </interface>
    <rng model='virtio'><backend model='builtin'/></rng>
    <panic model='isa'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


class Libvirt(RawGuest):
    """Starts transient domains one after the other, and times them."""

    def create(self) -> float:
        """Seconds from starting virsh to the guest's answer."""
        self.begin()
        try:
            self.virsh("create", str(self.directory / "domain.xml"))
            return self.answer(lambda: True)
        finally:
            # Not there if it could not be made, which has been said.
            self.virsh("destroy", NAME, check=False)

    def virsh(self, *words: str, check: bool = True) -> bool:
        """Whether that went well."""
        uri = f"qemu+unix:///system?socket={self.directory}/sockets/libvirt-sock"
        quiet = None if check else subprocess.DEVNULL
        done = subprocess.run(
            ["virsh", "--quiet", "--connect", uri, *words],
            check=check,
            stdout=subprocess.DEVNULL,
            stderr=quiet,
        )
        return done.returncode == 0

    def last_words(self) -> str:
        return last_words(self.directory)

    def note(self) -> str:
        version = subprocess.run(["virsh", "--version"], check=True, stdout=subprocess.PIPE, text=True)
        return (
            f"libvirt {version.stdout.strip()}: `virsh create` of a transient domain with that board, CPU, memory, "
            "kernel and initrd, from the start of virsh. Its daemon is up already, and is the bench's own: without "
            "control groups, security driver and networks; devices and user are what libvirt chooses."
        )


@contextmanager
def libvirt_peer(boot: Boot) -> Iterator[Libvirt | str]:
    """The peer, or why there is none."""
    with ExitStack() as stack:
        yield _start(stack, boot) if is_installed() else "libvirt: not installed."


def is_installed() -> bool:
    tools = all(shutil.which(tool) for tool in ("virsh", "libvirtd"))
    return tools and all(Path(place).is_dir() for place in PLACES.values())


def _start(stack: ExitStack, boot: Boot) -> Libvirt | str:
    name, directory = stack.enter_context(tap_place("libvirt"))
    peer = Libvirt(name, boot, directory)
    _prepare(directory, peer.machine(), boot.accelerator)
    daemon = ["libvirtd", "--config", str(directory / "libvirtd.conf"), "--pid-file", str(directory / "pid")]
    try:
        stack.enter_context(
            apart(name, directory, MOUNTS, daemon, lambda: peer.virsh("version", check=False))
        )
    except RuntimeError as error:
        return f"libvirt: not measured: {error}"
    stack.enter_context(answered(peer))
    return peer


def _prepare(directory: Path, machine: Machine, accelerator: argv.Accelerator) -> None:
    directory.chmod(0o711)  # QEMU is another user
    for part in (*PLACES, "sockets"):
        (directory / part).mkdir()
    # Copies: libvirt gives what it boots to QEMU's user, and back afterwards.
    shutil.copyfile(machine.kernel, directory / "kernel")
    shutil.copyfile(machine.initrd, directory / "initrd")
    (directory / "etc" / "qemu.conf").write_text(QEMU_CONF)
    (directory / "libvirtd.conf").write_text(DAEMON_CONF.format(directory=directory))
    (directory / "domain.xml").write_text(domain(directory, machine, accelerator))


def domain(directory: Path, machine: Machine, accelerator: argv.Accelerator) -> str:
    """What raw QEMU has, in libvirt's words."""
    room = argv.translated_mib(machine.memory_mib)
    emulated = accelerator == "tcg"
    return DOMAIN.format(
        kind="qemu" if emulated else "kvm",
        name=NAME,
        machine=machine,
        board=argv.board_of(machine),
        directory=directory,
        cmdline=escape(machine.cmdline),
        features=f"<tcg><tb-cache unit='MiB'>{room}</tb-cache></tcg>" if emulated else "",
        cpu="maximum" if emulated else "host-passthrough",
        mac=quoteattr(machine.nic.mac),
        link=LINK,
    )
