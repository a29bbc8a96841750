"""A node: runs the containers of pods as processes of this machine."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from processes import kill

from pipeline_ops.system.processes import find_processes

from .exec import NEW, OLD
from .objects import Object, Objects, format_time, has_ended, set_condition

_UID_VARIABLE = "FAKE_POD_UID"


class Kubelet:
    """The only node.

    Args:
      folder: for logs and for the folders of the pods.
      objects: of the cluster.
      finish: called with a pod whose end was reported and that may be forgotten.

    Attributes:
      unschedulable: why no pod gets this node; "" if all do.
      pull_errors: reasons and messages of the registry, by image.
      protocols: those that `exec` speaks, the best one first.
      lost: the uids of pods on nodes that do not answer.
    """

    def __init__(self, folder: Path, objects: Objects, finish: Callable[[Object], None]):
        self._folder, self._objects, self._finish = folder, objects, finish
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """The first process of each container, by the uid of its pod."""
        self._asked_to_end: dict[str, float] = {}
        self.lost: set[str] = set()
        self.reset()

    def reset(self) -> None:
        self.unschedulable = ""
        self.pull_errors: dict[str, tuple[str, str]] = {}
        self.protocols = [NEW, OLD]

    def find_log(self, pod: Object) -> Path:
        return self._folder / f"{pod['metadata']['uid']}.log"

    def find_processes(self, pod: Object) -> list[psutil.Process]:
        """All living processes of a container, whatever their session."""
        return find_processes((_UID_VARIABLE, pod["metadata"]["uid"]))

    def kill(self, pod: Object) -> None:
        """Kills all processes of a pod."""
        for process in self.find_processes(pod):
            kill(process)

    def tick(self) -> None:
        """Brings each pod one step further."""
        for pod in self._objects.list("pods"):
            with self._objects.lock:
                if pod["metadata"]["uid"] not in self.lost:
                    self._advance(pod)

    def _advance(self, pod: Object) -> None:
        process, phase = self._processes.get(pod["metadata"]["uid"]), pod["status"]["phase"]
        if process and phase == "Running" and process.poll() is not None:
            self.kill(pod)  # the rest of a pid namespace dies with its first process
            self._report_end(pod, process.returncode)
        if "deletionTimestamp" in pod["metadata"]:
            self._end(pod, process)
        elif phase == "Pending" and self._schedule(pod) and self._is_startable(pod):
            self._start(pod)

    def _schedule(self, pod: Object) -> bool:
        if "nodeName" not in pod["spec"]:
            message = self.unschedulable
            status, reason = ("False", "Unschedulable") if message else ("True", "")
            set_condition(pod, "PodScheduled", status, reason, message)
            if not message:
                pod["spec"]["nodeName"] = "node-1"
            self._objects.record("pods", pod)
        return "nodeName" in pod["spec"]

    def _is_startable(self, pod: Object) -> bool:
        container, reason, message = pod["spec"]["containers"][0], "", ""
        if container["image"] in self.pull_errors:
            reason, message = self.pull_errors[container["image"]]
        for name, secret in self._find_secrets(pod).items():
            if secret is None:
                reason, message = "CreateContainerConfigError", f'secret "{name}" not found'
        if reason:
            self._set_state(pod, "Pending", {"waiting": {"reason": reason, "message": message}})
        return not reason

    def _start(self, pod: Object) -> None:
        with open(self.find_log(pod), "ab") as log:
            self._processes[pod["metadata"]["uid"]] = subprocess.Popen(
                pod["spec"]["containers"][0]["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.build_environment(pod),
                cwd="/",
                start_new_session=True,
            )
        self._set_state(pod, "Running", {"running": {"startedAt": format_time()}})

    def build_environment(self, pod: Object) -> dict[str, str]:
        """The variables of a container. Paths of its own folders are those on this machine."""
        container, uid = pod["spec"]["containers"][0], pod["metadata"]["uid"]
        found = {
            key: base64.b64decode(value).decode()
            for secret in self._find_secrets(pod).values()
            for key, value in secret["data"].items()
        }
        found |= {variable["name"]: variable["value"] for variable in container["env"]}
        own = {volume["name"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
        for mount in container["volumeMounts"]:
            if mount["name"] not in own:
                continue
            path, folder = mount["mountPath"], self._folder / uid / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, value in found.items():
                # A test's own folder may well be below this machine's /tmp.
                if value == path or (path == "/work" and value.startswith("/work/")):
                    found[name] = str(folder) + value.removeprefix(path)
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "HOSTNAME": pod["metadata"]["name"],
            _UID_VARIABLE: uid,
        } | found

    def _find_secrets(self, pod: Object) -> dict[str, Object | None]:
        """The Secrets with variables, by name. None for one that is missing."""
        names = [each["secretRef"]["name"] for each in pod["spec"]["containers"][0]["envFrom"]]
        namespace = pod["metadata"]["namespace"]
        return {name: self._objects.get("secrets", namespace, name) for name in names}

    def _end(self, pod: Object, process: subprocess.Popen[bytes] | None) -> None:
        """Ends a deleted pod: SIGTERM to its first process, SIGKILL to all, then it is gone."""
        uid = pod["metadata"]["uid"]
        if process is None or has_ended(pod):
            self._finish(pod)
            return
        if uid not in self._asked_to_end:
            process.send_signal(signal.SIGTERM)
        began = self._asked_to_end.setdefault(uid, time.monotonic())
        if time.monotonic() - began > pod["metadata"]["deletionGracePeriodSeconds"]:
            self.kill(pod)

    def _report_end(self, pod: Object, code: int) -> None:
        exit_code = 128 - code if code < 0 else code
        state = {"exitCode": exit_code, "reason": "Error", "finishedAt": format_time()}
        if exit_code:
            self._set_state(pod, "Failed", {"terminated": state})
        else:
            self._set_state(pod, "Succeeded", {"terminated": state | {"reason": "Completed"}})

    def _set_state(self, pod: Object, phase: str, state: Object) -> None:
        container = pod["spec"]["containers"][0]
        shown = {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"] if phase != "Pending" else "",
            "ready": phase == "Running",
            "restartCount": 0,
            "state": state,
        }
        pod["status"] |= {"phase": phase, "containerStatuses": [shown]}
        self._objects.record("pods", pod)
