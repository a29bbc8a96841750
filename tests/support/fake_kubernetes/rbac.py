"""Who may do what, by the rules of Roles, and which of the rules were needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml


class Right(NamedTuple):
    """A verb for a resource, such as `create` for `batch` and `jobs`."""

    group: str
    resource: str
    verb: str


@dataclass
class Account:
    """An account, and what it has used of its rights. Without rights, it may do everything."""

    name: str
    rights: frozenset[Right] | None = None
    used: set[Right] = field(default_factory=set)
    refused: set[Right] = field(default_factory=set)

    def may(self, right: Right) -> bool:
        is_allowed = self.rights is None or right in self.rights
        (self.used if is_allowed else self.refused).add(right)
        return is_allowed


def read_roles(file: Path) -> dict[str, frozenset[Right]]:
    """The rights of the Roles in a file, by name."""
    return {
        document["metadata"]["name"]: frozenset(
            Right(group, resource, verb)
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        )
        for document in yaml.safe_load_all(file.read_text())
        if document["kind"] == "Role"
    }
