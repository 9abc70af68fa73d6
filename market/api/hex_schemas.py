"""What a JSON schema says of bytes: pydantic counts bytes and calls them binary, we write hex."""

from collections.abc import Mapping
from typing import Any


def hex_fields(schema: Any) -> Any:
    """A schema in which bytes are said to be hex: twice as long, and of its letters."""
    if isinstance(schema, list):
        return [hex_fields(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and _is_binary(schema):
        return _hex_field(schema)
    return {key: hex_fields(value) for key, value in schema.items()}


def _is_binary(schema: Mapping[str, Any]) -> bool:
    """As pydantic says it, or FastAPI."""
    kind = schema.get("contentMediaType")
    return schema.get("format") == "binary" or kind == "application/octet-stream"


def _hex_field(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: schema[key] for key in ("title", "description") if key in schema}
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least == most:
        return {**kept, "type": "string", "pattern": f"^[0-9a-f]{{{2 * least}}}$"}
    found = {**kept, "type": "string", "pattern": "^([0-9a-f]{2})*$", "minLength": 2 * least}
    return found if most is None else {**found, "maxLength": 2 * most}
