"""`atoll image`: what VMs are made from. Effects: calls the Hypervisor, prints."""

from __future__ import annotations

import argparse

from atoll.api import hypervisor as api
from atoll.cli.arguments import Commands, add_noun, add_verb
from atoll.cli.context import connect
from atoll.cli.output import Column, View, add_list_options, joined, render_list, style_of, write
from atoll.model.image import Image
from atoll.model.size import show_mib


def _honours(image: Image) -> str:
    return "not said" if image.honours is None else joined(image.honours)


IMAGE_VIEW: View[Image] = View(
    name=lambda image: image.name,
    columns=(
        Column("name", lambda image: image.name),
        Column("kinds", lambda image: joined(image.kinds), rank=1),
        Column(
            "min-memory", lambda image: show_mib(image.min_memory_mib), key=lambda image: image.min_memory_mib
        ),
        Column("ready", lambda image: image.ready, rank=3),
        Column("digest", lambda image: image.digest[:19], rank=4),
        Column("description", lambda image: image.description or "-", rank=2, is_long=True),
        Column("honours", _honours, wide=True, rank=5),
        Column("forkable", lambda image: "yes" if image.forkable else "no", wide=True, rank=6),
        Column("kernel", lambda image: image.boot.kernel, wide=True, rank=7, is_long=True),
        Column("initrd", lambda image: image.boot.initrd, wide=True, rank=8, is_long=True),
        Column("cmdline", lambda image: image.boot.cmdline or "-", wide=True, rank=9, is_long=True),
    ),
)


def register(commands: Commands) -> None:
    image = add_noun(commands, "image", "Images: what VMs are made from.")
    verb = add_verb(
        image, "list", list_, summary="List the images of the node.", example="atoll image list -o yaml"
    )
    add_list_options(verb)


def list_(options: argparse.Namespace) -> None:
    style = style_of(options, IMAGE_VIEW)
    with connect(options) as client:
        images = client.call(api.IMAGE_LIST)
    write(render_list(IMAGE_VIEW, images, style))
