"""The objects of the cluster, with all of their versions."""

from __future__ import annotations

import copy
import datetime
import threading
import uuid
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Resource, namespace and name."""


def format_time(seconds_from_now: float = 0.0) -> str:
    now = datetime.datetime.now(datetime.UTC)
    when = now + datetime.timedelta(seconds=seconds_from_now)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Objects:
    """A store with optimistic locking, as etcd is for Kubernetes.

    Attributes:
      lock: held while an object changes.
      events: all versions of all objects, with the resource and the kind of the change.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self._objects: dict[Key, Object] = {}
        self.events: list[tuple[int, str, Object]] = []

    def add(self, resource: str, namespace: str, body: Object) -> Object | None:
        """Adds an object. None if there is one of that name."""
        with self.lock:
            key = (resource, namespace, body["metadata"]["name"])
            if key in self._objects:
                return None
            found = copy.deepcopy(body)
            found["metadata"] |= {
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": format_time(),
            }
            self._objects[key] = found
            self.touch(resource, found, "ADDED")
            return found

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((resource, namespace, name))

    def list(self, resource: str, namespace: str | None = None) -> list[Object]:
        with self.lock:
            return [
                found
                for (kind, place, _), found in self._objects.items()
                if kind == resource and namespace in (None, place)
            ]

    def remove(self, resource: str, found: Object) -> None:
        with self.lock:
            metadata = found["metadata"]
            if self._objects.pop((resource, metadata["namespace"], metadata["name"]), None):
                self.touch(resource, found, "DELETED")

    def touch(self, resource: str, found: Object, event: str = "MODIFIED") -> None:
        """Gives a changed object its new version."""
        with self.lock:
            self.version += 1
            found["metadata"]["resourceVersion"] = str(self.version)
            copied = copy.deepcopy(found)
            self.events.append((self.version, resource, {"type": event, "object": copied}))

    def owners(self) -> Iterator[str]:
        return (found["metadata"]["uid"] for found in list(self._objects.values()))

    def owned(self) -> list[tuple[str, Object]]:
        """The objects that name an owner."""
        with self.lock:
            return [
                (key[0], found)
                for key, found in self._objects.items()
                if found["metadata"].get("ownerReferences")
            ]


def matches(found: Object, selector: str) -> bool:
    """Returns whether labels match a selector of equalities."""
    labels = found["metadata"].get("labels") or {}
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(labels.get(key) == value.removeprefix("=") for key, _, value in terms)
