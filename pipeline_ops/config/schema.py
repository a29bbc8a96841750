"""The JSON Schema of a YAML file, by which an editor completes, explains and checks it.

A type whose YAML has more forms than its fields show describes them where it is defined, with
`extend_json_schema` or pydantic's `WithJsonSchema`. Rules over several fields are left to
`trainyard validate`. The schema is of draft 7, which all editors read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaMode

from pipeline_ops.config.fields import DECLARATIONS, JsonSchema, Section, read_descriptions

DIALECT = "http://json-schema.org/draft-07/schema#"
_DEFINITIONS = "#/definitions/"
_MODE: JsonSchemaMode = "validation"


def make_schemas(types: Iterable[Any]) -> tuple[list[str], dict[str, JsonSchema]]:
    """Returns the names of the schemas of classes, and all schemas by name."""
    schemas, common = TypeAdapter.json_schemas(
        [(number, _MODE, TypeAdapter(each)) for number, each in enumerate(types)],
        schema_generator=_Generator,
        ref_template=f"{_DEFINITIONS}{{model}}",
    )
    names = [each["$ref"].removeprefix(_DEFINITIONS) for each in schemas.values()]
    return names, common["$defs"]


@functools.cache  # a hundredth of a second each time
def read_properties(section: type[Section]) -> Mapping[str, JsonSchema]:
    """Returns the schemas of the fields of a section."""
    schema = section.model_json_schema(schema_generator=_Generator)
    properties: Mapping[str, JsonSchema] = schema.get("anyOf", [schema])[0]["properties"]
    return properties


def refer_to(name: str) -> JsonSchema:
    return {"$ref": f"{_DEFINITIONS}{name}"}


def make_case(key: str, condition: JsonSchema, schema: JsonSchema) -> JsonSchema:
    """Returns a schema that holds for mappings in which the value of a key meets a condition."""
    case = {"type": "object", "required": [key], "properties": {key: condition}}
    return {"if": case, "then": schema}


def make_switch(
    key: str, cases: Mapping[str, JsonSchema], descriptions: Iterable[str]
) -> JsonSchema:
    """Returns a schema of mappings of several kinds, which the value of a key tells apart.

    Unlike `oneOf`, it leads to a message about the kind that was meant.
    """
    return {
        "type": "object",
        "required": [key],
        "properties": {key: {"enum": [*cases], "enumDescriptions": [*descriptions]}},
        "allOf": [make_case(key, {"const": name}, schema) for name, schema in cases.items()],
    }


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with the texts below the fields, in draft 7."""

    schema_dialect = DIALECT

    def model_schema(self, schema: Any) -> JsonSchema:
        return self._describe(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> JsonSchema:
        return self._describe(schema["cls"], super().dataclass_schema(schema))

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: Any) -> JsonSchema:
        """One schema with two types, where it can be, has a shorter message than two schemas."""
        inner = self.generate_inner(schema["schema"])
        if not isinstance(inner.get("type"), str) or "anyOf" in inner:
            return super().nullable_schema(schema)
        values = [inner["const"]] if "const" in inner else inner.get("enum")
        choices = {"enum": [*values, None]} if values else {}
        rest = {key: inner[key] for key in inner if key != "const"}
        return rest | {"type": [inner["type"], "null"]} | choices

    def tuple_schema(self, schema: Any) -> JsonSchema:
        """Draft 7 has the schemas of single items in `items`."""
        found = super().tuple_schema(schema)
        if "prefixItems" in found:
            found |= {
                "items": found.pop("prefixItems"),
                "additionalItems": found.pop("items", False),
            }
        return found

    def tagged_union_schema(self, schema: Any) -> JsonSchema:
        key = schema["discriminator"]
        if not isinstance(key, str):
            return super().tagged_union_schema(schema)
        choices = schema["choices"].items()
        cases = {str(tag): self.generate_inner(each) for tag, each in choices}
        found = [
            self.get_schema_from_definitions(JsonRef(each["$ref"])) or {} for each in cases.values()
        ]
        return make_switch(key, cases, [each.get("description", "") for each in found])

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchema:
        return {}  # a type of someone's own stage, of which only pydantic knows what it accepts

    def _describe(self, owner: type, schema: JsonSchema) -> JsonSchema:
        """Gives each property its text. Leaves out titles, which are names of classes."""
        texts = read_descriptions(owner)
        schema.pop("title", None)
        if "description" in schema:
            schema["description"] = _join(schema["description"])
        for name, field in schema["properties"].items():
            for declaration in DECLARATIONS:
                field.pop(declaration, None)
            text = texts.get(name, "")
            if "default" in field:  # an editor would write it out
                default = field.pop("default")
                value = default if isinstance(default, str) and default else json.dumps(default)
                text += f" Default: {value}." * ("$ref" not in field)
            if "$ref" in field and text:  # draft 7 ignores what stands beside it
                ref = field.pop("$ref")
                field |= {"type": self._find_types(ref), "allOf": [{"$ref": ref}]}
            if text:
                field["description"] = _join(text)
        return schema

    def _find_types(self, ref: str) -> list[str]:
        """Returns the types of a section in the YAML, its short form first."""
        found = self.get_schema_from_definitions(JsonRef(ref)) or {}
        types = [form["type"] for form in reversed(found.get("anyOf", [found]))]
        return [kind for each in types for kind in ([each] if isinstance(each, str) else each)]


def _join(text: str) -> str:
    return " ".join(text.split())
