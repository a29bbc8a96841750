"""The objects of the cluster, with all of their versions."""

from __future__ import annotations

import copy
import datetime
import threading
import uuid
from typing import Any

Object = dict[str, Any]


def format_time(seconds_from_now: float = 0.0) -> str:
    now = datetime.datetime.now(datetime.UTC)
    when = now + datetime.timedelta(seconds=seconds_from_now)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Objects:
    """What etcd is for Kubernetes.

    Attributes:
      lock: held while an object changes.
      versions: all versions of all objects, each with its resource.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.versions: list[tuple[str, Object]] = []
        self._objects: dict[tuple[str, str, str], Object] = {}

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
            self.record(resource, found)
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

    def list_orphans(self) -> list[tuple[str, Object]]:
        """The objects whose owner is gone, with their resources."""
        with self.lock:
            alive = {found["metadata"]["uid"] for found in self._objects.values()}
            return [
                (key[0], found)
                for key, found in self._objects.items()
                if any(o["uid"] not in alive for o in found["metadata"].get("ownerReferences", []))
            ]

    def remove(self, resource: str, found: Object) -> None:
        metadata = found["metadata"]
        with self.lock:
            self._objects.pop((resource, metadata["namespace"], metadata["name"]), None)

    def record(self, resource: str, found: Object) -> None:
        """Keeps the version that an object has after a change."""
        self.versions.append((resource, copy.deepcopy(found)))


def set_condition(found: Object, kind: str, status: str, reason: str, message: str) -> None:
    conditions = [each for each in found["status"].get("conditions", []) if each["type"] != kind]
    condition = {"type": kind, "status": status, "lastTransitionTime": format_time()}
    condition |= {key: value for key, value in (("reason", reason), ("message", message)) if value}
    found["status"]["conditions"] = [*conditions, condition]


def has_ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
