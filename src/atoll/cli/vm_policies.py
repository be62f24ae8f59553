"""Options of a VM that are the same when it is made and when it is changed: rules, hardware, volumes. Pure."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from typing import Any, TypeVar

from atoll.cli.arguments import Parser, parse_duration_s
from atoll.cli.words import unknown
from atoll.errors import Invalid
from atoll.model.hardware import Netboot, Watchdog, WatchdogAction
from atoll.model.share import ShareMount
from atoll.model.size import parse_mib
from atoll.model.vm import RestartPolicy
from atoll.model.volume import DiskInterface, FileSystem, VolumeFormat, VolumeSpec, VolumeType

T = TypeVar("T", VolumeFormat, FileSystem, VolumeType, DiskInterface)

NEVER = "never"
_VOLUME_KEYS = ("size", "name", "format", "fs", "type", "store", "interface")


def add_policy_options(parser: Parser, *, changing: bool) -> None:
    """Left out means the model's own default when a VM is made, and no change when it is changed."""
    parser.add_argument(
        "--restart",
        choices=[str(policy) for policy in RestartPolicy],
        metavar="POLICY",
        help="never, on-crash or always: whether it is started again when it goes down by itself",
    )
    parser.add_argument(
        "--destroy-on-power-down",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="destroy it when its guest powers off",
    )
    parser.add_argument(
        "--protect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="refuse to destroy it until this is lifted",
    )
    parser.add_argument(
        "--expires",
        metavar="DURATION|never" if changing else "DURATION",
        help="destroy it by itself after so long: 30m, 2h or 7d",
    )


def add_hardware_options(parser: Parser) -> None:
    """As above: of kinds of machine that have a kernel and devices of their own."""
    parser.add_argument(
        "--kernel-options", metavar="TEXT", help='added to the kernel\'s command line, as "quiet foo=1"'
    )
    parser.add_argument(
        "--watchdog",
        choices=[str(kind) for kind in Watchdog],
        metavar="KIND",
        help="none or i6300esb; default none",
    )
    parser.add_argument(
        "--watchdog-action",
        choices=[str(action) for action in WatchdogAction],
        metavar="ACTION",
        help="none, reset, shutdown or poweroff, when the guest stirs it no more; default reset",
    )
    parser.add_argument(
        "--netboot",
        choices=[str(each) for each in Netboot],
        metavar="WHEN",
        help="never, first (then from its first volume) or always; default never",
    )


def hardware_of(options: argparse.Namespace) -> dict[str, Any]:
    """What of it was typed, by the names that requests have for it."""
    given = {
        "kernel_options": options.kernel_options,
        "watchdog": options.watchdog and Watchdog(options.watchdog),
        "watchdog_action": options.watchdog_action and WatchdogAction(options.watchdog_action),
        "netboot": options.netboot and Netboot(options.netboot),
    }
    return {name: value for name, value in given.items() if value is not None}


def parse_expiry(text: str, now: datetime) -> datetime:
    """A moment, from a duration that begins now."""
    return now + timedelta(seconds=parse_duration_s("expires", text))


def parse_share(text: str) -> ShareMount:
    """NAME:/where/in/guest, or NAME:/where/in/guest:ro."""
    name, colon, place = text.partition(":")
    path, _, mode = place.partition(":")
    if not colon or mode not in ("", "ro", "rw"):
        raise Invalid("share", text, "must be NAME:/where/in/guest, and :ro behind it where it is read-only")
    return ShareMount(name, path, mode == "ro")


def parse_volume(text: str) -> VolumeSpec:
    """size=1GiB[,name=data][,format=raw|qcow2][,fs=ext4][,type=persistent|memory][,store=NAME]

    [,interface=virtio|nvme|ide]
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise Invalid(
                "volume", text, "is not KEY=VALUE,…", hint="for example: --volume size=1GiB,fs=ext4"
            )
        if key not in _VOLUME_KEYS:
            raise unknown("volume setting", key, _VOLUME_KEYS)
        if key in given:
            raise Invalid("volume", text, f"{key} is given twice")
        given[key] = value
    if "size" not in given:
        raise Invalid("volume", text, "has no size", hint="for example: --volume size=1GiB")
    return VolumeSpec(
        size_mib=parse_mib("size", given["size"]),
        name=given.get("name"),
        format=_choice("format", given.get("format", "raw"), VolumeFormat),
        fs=_choice("fs", given.get("fs", "none"), FileSystem),
        type=_choice("type", given.get("type", "persistent"), VolumeType),
        store=given.get("store"),
        interface=_choice("interface", given.get("interface", "virtio"), DiskInterface),
    )


def _choice(field: str, text: str, kind: type[T]) -> T:
    try:
        return kind(text)
    except ValueError:
        raise unknown(field, text, [str(each) for each in kind]) from None
