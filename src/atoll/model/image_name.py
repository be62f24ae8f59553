"""Names of images as paths: `debian/12/2026-11-15`. Pure.

Each part is a plain word. A folder, `debian/12`, means the newest image in it. A name is an image or a folder, never
both, so that what a name means does not depend on what else there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated

from msgspec import Meta

from atoll.errors import Conflict, Invalid, NotFound
from atoll.model.checks import check_pattern

PART_PATTERN = r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?"
IMAGE_PATH_PATTERN = rf"^{PART_PATTERN}(/{PART_PATTERN}){{0,7}}$"
LONGEST = 255
DEEPEST = 8

ImagePath = Annotated[
    str, Meta(pattern=IMAGE_PATH_PATTERN, max_length=LONGEST, description="an image, or a folder of images")
]


def check_image_path(field: str, value: str) -> str:
    """The name itself, or Invalid."""
    hint = "such as web or debian/12/2026-11-15"
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST:
        raise Invalid(field, value, f"must have 1 to {LONGEST} characters", hint=hint)
    parts = value.split("/")
    if len(parts) > DEEPEST:
        raise Invalid(field, value, f"must have at most {DEEPEST} parts", hint=hint)
    for part in parts:
        shape = (
            "parts of a-z, 0-9, '.', '_' and '-' that begin and end with a letter or digit, with '/' between"
        )
        check_pattern(field, part, PART_PATTERN, shape, hint=hint)
        if ".." in part:
            raise Invalid(field, value, "must not contain '..'", hint=hint)
    return value


def is_in(folder: str, name: str) -> bool:
    """Whether a name lies below a folder, at any depth."""
    return name.startswith(f"{folder}/")


def meant_by(name: str, created: Mapping[str, datetime]) -> str:
    """The image that a name means, among those that there are with the time of each: itself, or the newest in it.

    Of two that were made at once it is the one whose name comes last.
    """
    check_image_path("image", name)
    if name in created:
        return name
    inside = [(when, one) for one, when in created.items() if is_in(name, one)]
    if not inside:
        raise NotFound(
            f"image {name}: there is none of that name, and none in a folder of that name",
            hint="see: atoll image list",
        )
    return max(inside)[1]


def check_free(name: str, names: Iterable[str]) -> None:
    """Conflict where an image of this name would be a folder too, or lie in another image."""
    check_image_path("image", name)
    for other in names:
        if is_in(name, other):
            raise Conflict(
                f"image {name}: there is a folder of that name, with {other} in it",
                hint=f"name it {name}/…, or otherwise",
            )
        if is_in(other, name):
            raise Conflict(
                f"image {name}: {other} is an image, and can have none below it", hint="name it otherwise"
            )
