"""What the API server refuses: by the published schema, and by some rules beyond it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SCHEMAS = json.loads((Path(__file__).parent / "kubernetes-v1.34.json").read_text())["$defs"]
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def validate(body: dict[str, Any]) -> list[str]:
    """The problems of an object, as the API server reports them."""
    return find_schema_problems(body) or list(_check(body))


def find_schema_problems(body: dict[str, Any]) -> list[str]:
    """The problems of an object by the published schema alone."""
    from jsonschema import Draft202012Validator  # the import takes seconds

    kind = body.get("kind")
    if kind not in _SCHEMAS:
        return [f'no kind "{kind}" is registered']
    validator = Draft202012Validator({"$defs": _SCHEMAS, "$ref": f"#/$defs/{kind}"})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(body)]


def _check(body: dict[str, Any]) -> Iterator[str]:
    metadata = body.get("metadata") or {}
    if not _NAME.fullmatch(metadata.get("name") or ""):
        yield f"metadata.name: Invalid value: {metadata.get('name')!r}"
    for value in (metadata.get("labels") or {}).values():
        if not _LABEL.fullmatch(value):
            yield f"metadata.labels: Invalid value: {value!r}"
    for owner in metadata.get("ownerReferences") or []:
        if not owner.get("uid"):
            yield "metadata.ownerReferences.uid: must not be empty"
    if body["kind"] == "Job":
        yield from _check_job(body["spec"])
    if body["kind"] == "Secret":
        for value in (body.get("data") or {}).values():
            base64.b64decode(value, validate=True)


def _check_job(spec: dict[str, Any]) -> Iterator[str]:
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield "spec.template.spec.restartPolicy: Required value"
    if spec.get("podFailurePolicy"):
        if pod.get("restartPolicy") != "Never":
            yield "spec.podFailurePolicy: only with restartPolicy Never"
        if spec.get("podReplacementPolicy", "Failed") != "Failed":
            yield "spec.podReplacementPolicy: must be Failed with podFailurePolicy"
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield "spec.completions: Required value"
    if spec["template"].get("metadata", {}).get("labels", {}) == {}:
        yield "spec.template.metadata.labels: a label is needed to find the pods"
    yield from _check_pod(pod)


def _check_pod(pod: dict[str, Any]) -> Iterator[str]:
    for value in (pod.get("nodeSelector") or {}).values():
        if not _LABEL.fullmatch(value):
            yield f"spec.nodeSelector: Invalid value: {value!r}"
    names = [volume["name"] for volume in pod.get("volumes") or []]
    if len(names) != len(set(names)):
        yield "volumes.name: Duplicate value"
    for container in pod["containers"]:
        mounts = container.get("volumeMounts") or []
        paths = [mount["mountPath"] for mount in mounts]
        if len(paths) != len(set(paths)):
            yield "volumeMounts.mountPath: must be unique"
        for mount in mounts:
            if mount["name"] not in names:
                yield f"volumeMounts.name: Not found: {mount['name']!r}"
        for variable in container.get("env") or []:
            if not _VARIABLE.fullmatch(variable["name"]):
                yield f"env.name: Invalid value: {variable['name']!r}"
        resources = container.get("resources") or {}
        for name, quantity in (resources.get("limits") or {}).items():
            if not _QUANTITY.fullmatch(str(quantity)):
                yield f"resources.limits[{name}]: Invalid value: {quantity!r}"
