"""The reference page: `python -m atoll.api.reference > docs/reference/api.md`. Effects: standard output."""

from __future__ import annotations

import sys

from atoll.api import hypervisor, openapi
from atoll.errors import AtollError


def exits(kind: type[AtollError] = AtollError) -> list[tuple[str, int, int, str]]:
    """Every error: code, HTTP status, exit status, meaning."""
    # What the base stands for by itself is not what its docstring says of all.
    meaning = (
        "A failure that nobody foresaw." if kind is AtollError else (kind.__doc__ or "").partition("\n")[0]
    )
    own = [(kind.code, kind.http_status, kind.exit_status, meaning)] if "code" in vars(kind) else []
    return [*own, *(found for child in kind.__subclasses__() for found in exits(child))]


def page() -> str:
    return openapi.reference("The API of a Hypervisor", hypervisor.ROUTES, exits())


def main() -> None:
    sys.stdout.write(page())


if __name__ == "__main__":
    main()
