"""`atoll volume`: the volumes of a VM beside its root. Effects: calls the Hypervisor, reads files, prints."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from atoll.api import hypervisor as api
from atoll.api import volumes
from atoll.api.route import Done
from atoll.api.volumes import AddVolume, ChangeVolume, UploadVolume, VolumeOrder, VolumeStep
from atoll.cli.arguments import Commands, Parser, Run, add_noun, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm, volume_words
from atoll.cli.context import connect
from atoll.cli.output import (
    Column,
    View,
    add_list_options,
    add_show_options,
    notice,
    render_list,
    style_of,
    write,
)
from atoll.cli.vm_policies import parse_volume
from atoll.cli.vm_ref import add_vm_argument, check_ref
from atoll.errors import Conflict, Invalid, Unreachable
from atoll.model.size import parse_mib, show_mib
from atoll.model.vm import VM
from atoll.model.volume import DiskInterface, Volume, VolumeFormat, check_volume_name, find

CHUNK = 1 << 20


def register(commands: Commands) -> None:
    volume = add_noun(commands, "volume", "Volumes: the disks of a VM beside its root.")
    add = _verb(volume, "list", list_, "List the volumes of a VM.", "atoll volume list web", names=False)
    add_list_options(add)
    add = _verb(
        volume,
        "add",
        add_,
        "Add a volume: empty, with an empty file system, or with the content of a file.",
        "atoll volume add web --size 1GiB --fs ext4 --name data",
        names=False,
    )
    add.add_argument("--name", help="the guest finds it by this; default vol1, vol2, …")
    add.add_argument("--size", metavar="SIZE", help="default: what the content needs")
    add.add_argument("--format", choices=("raw", "qcow2"), default="raw", help="default raw")
    add.add_argument("--fs", choices=("none", "ext4"), default="none", help="make one on it; default none")
    add.add_argument(
        "--type", choices=("persistent", "memory"), default="persistent", help="default persistent"
    )
    add.add_argument("--store", metavar="NAME", help="default: the one that has most room")
    add.add_argument(
        "--interface", choices=("virtio", "nvme", "ide"), default="virtio", help="default virtio"
    )
    add.add_argument("--content", metavar="FILE", help="what is on it, raw or qcow2 as --format says")
    add.add_argument("--detached", action="store_true", help="do not give it to the guest yet")
    add_show_options(add, quiet=True)
    for name, run, summary in (
        ("attach", attach, "Give a volume to the guest: at once where it can, else at its next start."),
        ("detach", detach, "Take a volume from the guest, and keep it."),
    ):
        add_show_options(_verb(volume, name, run, summary, f"atoll volume {name} web data"), quiet=True)
    for name, summary in (
        ("grow", "Make a volume larger, with the ext4 file system on it."),
        ("shrink", "Make a volume smaller, with the ext4 file system on it."),
    ):
        add = _verb(volume, name, resize, summary, f"atoll volume {name} web data 2GiB")
        add.add_argument("size", metavar="SIZE")
        add_show_options(add, quiet=True)
    add = _verb(volume, "move", move, "Move a volume to another store.", "atoll volume move web data fast")
    add.add_argument("store", metavar="STORE")
    add_show_options(add, quiet=True)
    add = _verb(
        volume,
        "reorder",
        reorder,
        "Put volumes into another order.",
        "atoll volume reorder web b a",
        names=False,
    )
    add.add_argument("names", nargs="+", metavar="VOLUME")
    add_show_options(add, quiet=True)
    add = _verb(
        volume,
        "delete",
        delete,
        "Delete a volume and all that is on it.",
        "atoll volume delete web data --yes",
    )
    add_yes_option(add)


def _verb(
    commands: Commands, name: str, run: Run, summary: str, example: str, *, names: bool = True
) -> Parser:
    parser = add_verb(commands, name, run, summary=summary, example=example)
    add_vm_argument(parser)
    if names:
        parser.add_argument("volume", metavar="VOLUME")
    return parser


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, VOLUME_VIEW)
    ref = check_ref(options.vm)
    with connect(options) as client:
        vm = client.call(api.VM_SHOW, {"vm": ref})
    write(render_list(VOLUME_VIEW, vm.volumes, style))


def add_(options: argparse.Namespace) -> None:
    style = style_of(options, VOLUME_VIEW)
    ref = check_ref(options.vm)
    if options.content is not None:
        vm = _upload(options, ref)
    else:
        request = add_request(options)
        with connect(options) as client:
            lines = client.stream(volumes.VOLUME_ADD, {"vm": ref}, body=request)
            vm = _followed(lines, options)
    _tell_pending(vm, options)
    write(render_list(VOLUME_VIEW, vm.volumes, style))


def add_request(options: argparse.Namespace) -> AddVolume:
    """The volume that was typed."""
    if options.size is None:
        raise Invalid("size", None, "is needed for a volume without content", hint="for example: --size 1GiB")
    given = {
        name: getattr(options, name)
        for name in ("size", "name", "format", "fs", "type", "store", "interface")
    }
    text = ",".join(f"{name}={value}" for name, value in given.items() if value is not None)
    return AddVolume(parse_volume(text), attach=not options.detached)


def _upload(options: argparse.Namespace, ref: str) -> VM:
    if options.fs != "none" or options.type != "persistent":
        raise Invalid("content", options.content, "comes with its own file system, on a persistent volume")
    if options.name is None:
        raise Invalid("name", None, "is needed for a volume with content", hint="for example: --name data")
    params = {"vm": ref, "volume": check_volume_name(options.name)}
    path = Path(options.content)
    try:
        with path.open("rb") as file, connect(options) as client:
            length = os.fstat(file.fileno()).st_size
            query = UploadVolume(
                sha256=_sha256(path),
                format=VolumeFormat(options.format),
                size_mib=parse_mib("size", options.size) if options.size else None,
                store=options.store,
                interface=DiskInterface(options.interface),
                attach=not options.detached,
            )
            return client.upload(volumes.VOLUME_UPLOAD, params, file, length, query=query)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise Invalid("content", str(path), why, hint="give the path of a file that you can read") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def attach(options: argparse.Namespace) -> None:
    _change(options, ChangeVolume(attached=True))


def detach(options: argparse.Namespace) -> None:
    _change(options, ChangeVolume(attached=False))


def move(options: argparse.Namespace) -> None:
    _change(options, ChangeVolume(store=options.store))


def resize(options: argparse.Namespace) -> None:
    """Grow or shrink: the other way round is a mistake that could cost what is on it."""
    size_mib = parse_mib("size", options.size)

    def check(volume: Volume) -> None:
        grows = options.verb == "grow"
        if (size_mib < volume.size_mib) if grows else (size_mib > volume.size_mib):
            other = "shrink" if grows else "grow"
            raise Conflict(
                f"volume {volume.name}: has {show_mib(volume.size_mib)}, which {show_mib(size_mib)} does not"
                f" {options.verb}",
                hint=f"did you mean: atoll volume {other} {options.vm} {volume.name} {options.size}",
            )

    _change(options, ChangeVolume(size_mib=size_mib), check)


def reorder(options: argparse.Namespace) -> None:
    style = style_of(options, VOLUME_VIEW)
    ref, order = check_ref(options.vm), VolumeOrder(tuple(options.names))
    with connect(options) as client:
        vm = client.call(volumes.VOLUME_REORDER, {"vm": ref}, body=order)
    _tell_pending(vm, options)
    write(render_list(VOLUME_VIEW, vm.volumes, style))


def delete(options: argparse.Namespace) -> None:
    ref, name = check_ref(options.vm), check_volume_name(options.volume)
    check_can_ask(f"volume delete {ref} {name}", options)
    with connect(options) as client:
        if not options.yes:
            vm = client.call(api.VM_SHOW, {"vm": ref})
            going = find(vm.volumes, name, ref)
            others = [volume_words(volume) for volume in vm.volumes if volume is not going]
            kept = [f"VM {vm.name} ({vm.ip}, {vm.state}): {'; '.join(others)}"]
            confirm(f"delete volume {name} of VM {vm.name}", [volume_words(going)], options, kept)
        client.call(volumes.VOLUME_DELETE, {"vm": ref, "volume": name})


def _change(
    options: argparse.Namespace, change: ChangeVolume, check: Callable[[Volume], None] | None = None
) -> None:
    style = style_of(options, VOLUME_VIEW)
    ref, name = check_ref(options.vm), check_volume_name(options.volume)
    with connect(options) as client:
        if check is not None:
            check(find(client.call(api.VM_SHOW, {"vm": ref}).volumes, name, ref))
        lines = client.stream(volumes.VOLUME_CHANGE, {"vm": ref, "volume": name}, body=change)
        vm = _followed(lines, options)
    _tell_pending(vm, options)
    write(render_list(VOLUME_VIEW, vm.volumes, style))


def _followed(lines: Iterator[VolumeStep | Done[VM]], options: argparse.Namespace) -> VM:
    for line in lines:
        if isinstance(line, Done):
            return line.result
        notice(f"{line.step} {line.elapsed_s:.2f}s", options)
    raise Unreachable("the stream ended before its result", hint="see: atoll status, then: atoll volume list")


def _tell_pending(vm: VM, options: argparse.Namespace) -> None:
    if "volumes" in vm.pending:
        notice(
            f"{vm.name}: runs on with the volumes that it had until its next start: atoll vm reboot {vm.name}",
            options,
        )


VOLUME_VIEW: View[Volume] = View(
    name=lambda volume: volume.name,
    columns=(
        Column("name", lambda volume: volume.name, min_width=8),
        Column("size", lambda volume: show_mib(volume.size_mib), key=lambda volume: volume.size_mib),
        Column("format", lambda volume: volume.format, rank=3),
        Column("fs", lambda volume: volume.fs, rank=1),
        Column("type", lambda volume: volume.type, rank=2),
        Column("store", lambda volume: volume.store or "-", rank=4),
        Column("interface", lambda volume: volume.interface, rank=5),
        Column("attached", lambda volume: "yes" if volume.attached else "no"),
    ),
)
