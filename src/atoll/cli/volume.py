"""`atoll volume`: the volumes of a VM beside its root. Effects: calls the Hypervisor, reads files, prints."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from atoll.api import hypervisor as api
from atoll.api import volumes
from atoll.api.route import Done
from atoll.api.volumes import AddVolume, ChangeVolume, UploadVolume, VolumeOrder, VolumeStep
from atoll.cli.arguments import VM_METAVAR, Commands, Parser, Run, add_noun, add_verb
from atoll.cli.asking import add_yes_option, check_can_ask, confirm, volume_words
from atoll.cli.context import connect
from atoll.cli.output import (
    Column,
    View,
    add_list_options,
    add_show_options,
    notice,
    render_list,
    render_one,
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
    add = add_verb(
        volume,
        "list",
        list_,
        summary="List the volumes of a VM, or those of all.",
        example="atoll volume list web",
    )
    add.add_argument("vm", nargs="?", metavar=VM_METAVAR, help="default: all VMs")
    add_list_options(add)
    add = _verb(
        volume, "show", show, "Show a volume, and where the guest finds it.", "atoll volume show web data"
    )
    add_show_options(add)
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
    for name, summary, size, meaning in (
        (
            "grow",
            "Make a volume larger, with the ext4 file system on it, also while the guest uses it.",
            "+1GiB",
            "how large it becomes, or with a + how much is added",
        ),
        ("shrink", "Make a volume smaller, with the ext4 file system on it.", "2GiB", "how large it becomes"),
    ):
        add = _verb(volume, name, resize, summary, f"atoll volume {name} web data {size}")
        add.add_argument("size", metavar="SIZE", help=meaning)
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
    if options.vm is None:
        _list_all(options)
        return
    style = style_of(options, VOLUME_VIEW)
    ref = check_ref(options.vm)
    with connect(options) as client:
        vm = client.call(api.VM_SHOW, {"vm": ref})
    write(render_list(VOLUME_VIEW, vm.volumes, style))


def _list_all(options: argparse.Namespace) -> None:
    style = style_of(options, HELD_VIEW)
    with connect(options) as client:
        vms = client.call(api.VM_LIST)
    held = [Held(vm.name, volume) for vm in vms for volume in vm.volumes]
    write(render_list(HELD_VIEW, held, style))


def show(options: argparse.Namespace) -> None:
    style = style_of(options, VOLUME_VIEW)
    ref, name = check_ref(options.vm), check_volume_name(options.volume)
    with connect(options) as client:
        vm = client.call(api.VM_SHOW, {"vm": ref})
    write(render_one(VOLUME_VIEW, find(vm.volumes, name, ref), style))


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
    _change(options, lambda _: ChangeVolume(attached=True))


def detach(options: argparse.Namespace) -> None:
    _change(options, lambda _: ChangeVolume(attached=False))


def move(options: argparse.Namespace) -> None:
    _change(options, lambda _: ChangeVolume(store=options.store))


def resize(options: argparse.Namespace) -> None:
    """Grow or shrink: the other way round is a mistake that could cost what is on it."""
    grows = options.verb == "grow"
    is_more = grows and options.size.startswith("+")
    given_mib = parse_mib("size", options.size[1:] if is_more else options.size)

    def change(volume: Volume) -> ChangeVolume:
        size_mib = volume.size_mib + given_mib if is_more else given_mib
        if (size_mib < volume.size_mib) if grows else (size_mib > volume.size_mib):
            other = "shrink" if grows else "grow"
            raise Conflict(
                f"volume {volume.name}: has {show_mib(volume.size_mib)}, which {show_mib(size_mib)} does not"
                f" {options.verb}",
                hint=f"did you mean: atoll volume {other} {options.vm} {volume.name} {options.size}",
            )
        return ChangeVolume(size_mib=size_mib)

    _change(options, change)


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
        vm = client.call(api.VM_SHOW, {"vm": ref})
        going = find(vm.volumes, name, ref)
        others = [volume_words(volume) for volume in vm.volumes if volume is not going]
        kept = [f"VM {vm.name} ({vm.ip}, {vm.state}): {'; '.join(others)}"]
        confirm(f"delete volume {name} of VM {vm.name}", [volume_words(going)], options, kept)
        client.call(volumes.VOLUME_DELETE, {"vm": ref, "volume": name})


def _change(options: argparse.Namespace, change: Callable[[Volume], ChangeVolume]) -> None:
    """What is to be different follows from what it is."""
    style = style_of(options, VOLUME_VIEW)
    ref, name = check_ref(options.vm), check_volume_name(options.volume)
    with connect(options) as client:
        volume = find(client.call(api.VM_SHOW, {"vm": ref}).volumes, name, ref)
        lines = client.stream(volumes.VOLUME_CHANGE, {"vm": ref, "volume": name}, body=change(volume))
        vm = _followed(lines, options)
    _tell_pending(vm, options)
    write(render_list(VOLUME_VIEW, vm.volumes, style))


def _followed(lines: Iterator[VolumeStep | Done[VM]], options: argparse.Namespace) -> VM:
    for line in lines:
        if isinstance(line, Done):
            return line.result
        notice(f"{line.step} {line.elapsed_s:.2f}s{f': {line.note}' if line.note else ''}", options)
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
        Column("device", lambda volume: volume.device or "-", wide=True, rank=6),
    ),
)


class Held(Struct, frozen=True):
    """A volume, among those of other VMs."""

    vm: str
    volume: Volume


def _held(column: Column[Volume]) -> Column[Held]:
    key = column.key
    return Column(
        column.name,
        lambda held: column.text(held.volume),
        key=(lambda held: key(held.volume)) if key else None,
        wide=column.wide,
        rank=column.rank,
        min_width=column.min_width,
    )


HELD_VIEW: View[Held] = View(
    name=lambda held: f"{held.vm}/{held.volume.name}",
    columns=(Column("vm", lambda held: held.vm, min_width=8), *map(_held, VOLUME_VIEW.columns)),
)
