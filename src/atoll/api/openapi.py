"""OpenAPI 3.1 and the reference page, from the declarations. Pure."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from atoll.api.access import Access
from atoll.api.route import NOTHING, OFFSET_HEADER, Download, Problem, Route, Socket, Stream, Unary, Upload

REF = "#/components/schemas/{name}"
# What OpenAPI 3.1 would leave unsaid, and generators of clients ask for.
BYTES = {"schema": {"type": "string", "format": "binary"}}
TEXT = {"schema": {"type": "string"}}


def document(
    title: str, version: str, routes: Sequence[Route[Any, Any]], patterns: dict[str, str]
) -> dict[str, Any]:
    """The OpenAPI description of a service. `patterns` says what each path parameter looks like."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, schemas, patterns)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "certificate": {"type": "mutualTLS", "description": "a client certificate of the CA"}
            },
        },
    }


class _Schemas:
    """JSON Schema of every type that a route names."""

    def __init__(self, routes: Iterable[Route[Any, Any]]) -> None:
        types = [Problem, *(kind for route in routes for kind in _types(route))]
        self._kinds = list(dict.fromkeys(types))
        schemas, self.components = msgspec.json.schema_components(self._kinds, ref_template=REF)
        self._schemas = dict(zip(self._kinds, schemas, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        schema: dict[str, Any] = self._schemas[kind]
        return schema

    def fields(self, kind: Any) -> dict[str, Any]:
        """The properties of a struct, for query parameters."""
        properties: dict[str, Any] = self.components[kind.__name__]["properties"]
        return properties

    def required(self, kind: Any) -> list[str]:
        names: list[str] = self.components[kind.__name__].get("required", [])
        return names


def _types(route: Route[Any, Any]) -> list[Any]:
    types = [route.body, route.query]
    if isinstance(route, Unary | Stream | Upload):
        types.append(route.result)
    if isinstance(route, Stream):
        types.append(route.item)
    if isinstance(route, Socket):
        types += [route.first, route.heard, route.told]
    return [kind for kind in types if kind is not NOTHING]


def _operation(route: Route[Any, Any], schemas: _Schemas, patterns: dict[str, str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "x-access": str(route.access),
        "security": [] if route.access is Access.PUBLIC else [{"certificate": []}],
        "responses": _responses(route, schemas),
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": patterns[name]},
        }
        for name in route.params
    ]
    if route.query is not NOTHING:
        parameters += [
            {"name": name, "in": "query", "required": name in schemas.required(route.query), "schema": schema}
            for name, schema in schemas.fields(route.query).items()
        ]
    if parameters:
        operation["parameters"] = parameters
    if isinstance(route, Upload):
        content: dict[str, Any] = {"application/octet-stream": BYTES}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.body is not NOTHING:
        required = any(field.required for field in msgspec.structs.fields(route.body))
        content = {"application/json": {"schema": schemas.of(route.body)}}
        operation["requestBody"] = {"required": required, "content": content}
    return operation


def _responses(route: Route[Any, Any], schemas: _Schemas) -> dict[str, Any]:
    problem = {
        "description": "what went wrong",
        "content": {"application/problem+json": {"schema": schemas.of(Problem)}},
    }
    return {**_success(route, schemas), "default": problem}


def _success(route: Route[Any, Any], schemas: _Schemas) -> dict[str, Any]:
    match route:
        case Stream():
            return {"200": _lines(route, schemas)}
        case Unary() if route.result is NOTHING:
            return {"204": {"description": "done"}}
        case Unary() | Upload():
            return {
                "200": {
                    "description": "done",
                    "content": {"application/json": {"schema": schemas.of(route.result)}},
                }
            }
        case Download():
            content = {route.content_type: TEXT if route.content_type.startswith("text/") else BYTES}
            return {"200": {"description": "raw bytes", "content": content, **_headers(route)}}
        case Socket():
            told = "" if route.told is NOTHING else f"; text frames tell {route.told.__name__}"
            if route.first is not NOTHING:
                told = f"; first a text frame with {route.first.__name__}{told}"
            return {"101": {"description": f"a WebSocket of raw bytes, both ways{told}"}}
        case _:
            raise TypeError(f"{route.name} is of no known kind of route")


def _lines(route: Stream[Any, Any, Any, Any], schemas: _Schemas) -> dict[str, Any]:
    line = {"item": schemas.of(route.item), "error": schemas.of(Problem)}
    content: dict[str, Any] = {}
    about = "one JSON object a line, as the schema says; blank lines are heartbeats"
    if route.result is not NOTHING:
        line["result"] = schemas.of(route.result)
        content["application/json"] = {"schema": schemas.of(route.result)}
        about = f"with Accept: application/json the result alone, when it is there; otherwise {about}"
    # OpenAPI 3.1 has no word for what each line is; by custom it is the schema of the whole.
    schema = {"type": "object", "properties": line, "maxProperties": 1}
    return {"description": about, "content": {**content, "application/jsonl": {"schema": schema}}}


def _headers(route: Download[Any, Any]) -> dict[str, Any]:
    if not route.is_part:
        return {}
    about = {"description": "the place of the first byte in the whole", "schema": {"type": "integer"}}
    return {"headers": {OFFSET_HEADER: about}}


def reference(
    title: str, routes: Sequence[Route[Any, Any]], exits: Sequence[tuple[str, int, int, str]]
) -> str:
    """The reference page. `exits` are the errors: code, HTTP status, exit status, meaning."""
    schemas = _Schemas(routes)
    lines = [
        f"# {title}",
        "",
        "Generated from the declarations in `src/atoll/api/` by `make reference`; a test keeps it so.",
        "",
        "HTTPS with a client certificate on every route but those that are public. JSON in and out."
        " A stream is lines of JSON; one that ends with a result gives that alone to `Accept: application/json`.",
        "",
        "| call | who | takes | gives | what for |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(route) for route in routes]
    lines += ["", "## Errors", "", "| code | HTTP | exit | meaning |", "|---|---|---|---|"]
    lines += [f"| `{code}` | {status} | {leave} | {meaning} |" for code, status, leave, meaning in exits]
    for name, schema in sorted(schemas.components.items()):
        lines += ["", f"## {name}", ""]
        if text := schema.get("description"):
            lines += [" ".join(text.split()), ""]
        lines += _fields(schema)
    return "\n".join(lines) + "\n"


def _row(route: Route[Any, Any]) -> str:
    body = "bytes" if isinstance(route, Upload) else "" if route.body is NOTHING else _named(route.body)
    query = "" if route.query is NOTHING else f"?{_named(route.query)}"
    if isinstance(route, Socket) and route.first is not NOTHING:
        body = f"{_named(route.first)}, then {_named(route.heard)}"
    gives = {Stream: "stream", Download: "bytes", Socket: "WebSocket"}.get(type(route), "")
    if isinstance(route, Stream):
        gives = f"stream of {_named(route.item)}" + (
            "" if route.result is NOTHING else f", then {_named(route.result)}"
        )
    if isinstance(route, Download) and route.is_part:
        gives += f", {OFFSET_HEADER}"
    if isinstance(route, Socket) and route.told is not NOTHING:
        gives += f", tells {_named(route.told)}"
    if isinstance(route, Unary | Upload):
        gives = "" if route.result is NOTHING else _named(route.result)
    return f"| `{route.verb} {route.path}` | {route.access} | {body}{query} | {gives} | {route.summary} |"


def _named(kind: Any) -> str:
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return f"list of {_named(arguments[0])}"
    return "object" if arguments else f"[{kind.__name__}](#{kind.__name__.lower()})"


def _fields(schema: dict[str, Any]) -> list[str]:
    if "enum" in schema:
        return [", ".join(f"`{value}`" for value in schema["enum"])]
    required = set(schema.get("required", ()))
    rows = ["| field | type | default |", "|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        default = (
            "required" if name in required else f"`{msgspec.json.encode(field.get('default')).decode()}`"
        )
        rows.append(f"| `{name}` | {_shape(field)} | {default} |")
    return rows


def _shape(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_shape(option) for option in field["anyOf"])
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_shape(field.get('items', {}))}"
    limits = [
        f"{word} {field[key]}"
        for key, word in (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "length ≤"))
        if key in field
    ]
    return ", ".join([kind, *limits])
