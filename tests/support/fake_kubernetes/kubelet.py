"""A node: runs the containers of pods as processes of this machine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from processes import is_running, query_process
from starlette.websockets import WebSocket, WebSocketDisconnect

from .objects import Object, Objects, format_time

_UID_VARIABLE = "FAKE_POD_UID"
_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255


@dataclass
class Container:
    """The process of a pod's container, and how its end is reported."""

    process: subprocess.Popen[bytes]
    reason: str = ""
    """Instead of `Completed` or `Error`."""


class Kubelet:
    """The only node.

    Args:
      folder: for logs and for the folders of the pods.
      objects: of the cluster.
      finish: called with a pod whose end was reported and that may be forgotten.

    Attributes:
      unschedulable: why no pod gets this node; "" if all do.
      pull_errors: messages of the registry, by image.
      protocols: those that `exec` speaks, the best one first.
    """

    def __init__(self, folder: Path, objects: Objects, finish: Callable[[Object], None]):
        self._folder, self._objects, self._finish = folder, objects, finish
        self._containers: dict[str, Container] = {}
        self._kill_at: dict[str, float] = {}
        self.unschedulable = ""
        self.pull_errors: dict[str, tuple[str, str]] = {}
        self.protocols = [_V5, _V4]
        self.lost: set[str] = set()
        """The uids of pods on nodes that do not answer."""

    def find_log(self, pod: Object) -> Path:
        return self._folder / f"{pod['metadata']['uid']}.log"

    def find_processes(self, uid: str) -> list[psutil.Process]:
        """All living processes of a container, whatever their session."""
        return [
            process
            for process in psutil.process_iter()
            if query_process(process.environ, gone={}).get(_UID_VARIABLE) == uid
            and is_running(process)
        ]

    def kill(self, pod: Object, reason: str = "") -> None:
        """Kills all processes of a pod. The reason is that of its container's state."""
        uid = pod["metadata"]["uid"]
        if container := self._containers.get(uid):
            container.reason = reason or container.reason
        for process in self.find_processes(uid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def tick(self) -> None:
        """Brings each pod one step further."""
        for pod in self._objects.list("pods"):
            with self._objects.lock:
                if pod["metadata"]["uid"] not in self.lost:
                    self._advance(pod)

    def _advance(self, pod: Object) -> None:
        metadata, status = pod["metadata"], pod["status"]
        uid = metadata["uid"]
        container = self._containers.get(uid)
        if container and status["phase"] == "Running":
            code = container.process.poll()
            if code is not None:
                self.kill(pod)  # the rest of a pid namespace dies with its first process
                self._report_end(pod, code)
        if metadata.get("deletionTimestamp"):
            self._end(pod)
        elif status["phase"] == "Pending" and self._schedule(pod) and self._is_startable(pod):
            self._start(pod)

    def _schedule(self, pod: Object) -> bool:
        if pod["spec"].get("nodeName"):
            return True
        if self.unschedulable:
            self._set_condition(pod, "PodScheduled", "False", "Unschedulable", self.unschedulable)
            return False
        pod["spec"]["nodeName"] = "node-1"
        self._set_condition(pod, "PodScheduled", "True")
        return True

    def _is_startable(self, pod: Object) -> bool:
        spec = pod["spec"]["containers"][0]
        if spec["image"] in self.pull_errors:
            reason, message = self.pull_errors[spec["image"]]
            self._set_waiting(pod, reason, message)
            return False
        for source in spec.get("envFrom") or []:
            name = source["secretRef"]["name"]
            if self._objects.get("secrets", pod["metadata"]["namespace"], name) is None:
                self._set_waiting(pod, "CreateContainerConfigError", f'secret "{name}" not found')
                return False
        return True

    def _start(self, pod: Object) -> None:
        spec, uid = pod["spec"]["containers"][0], pod["metadata"]["uid"]
        with open(self.find_log(pod), "ab") as log:
            try:
                process = subprocess.Popen(
                    spec["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.build_environment(pod),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                state = {"exitCode": 128, "reason": "StartError", "message": str(error)}
                self._set_state(pod, "Failed", {"terminated": state})
                return
        self._containers[uid] = Container(process)
        self._set_state(pod, "Running", {"running": {"startedAt": format_time()}})

    def build_environment(self, pod: Object) -> dict[str, str]:
        """The variables of a container. Paths of its own folders are those on this machine."""
        spec, metadata = pod["spec"]["containers"][0], pod["metadata"]
        found: dict[str, str] = {}
        for source in spec.get("envFrom") or []:
            name = source["secretRef"]["name"]
            secret = self._objects.get("secrets", metadata["namespace"], name)
            for key, value in (secret or {}).get("data", {}).items():
                found[key] = base64.b64decode(value).decode()
        found |= {variable["name"]: variable["value"] for variable in spec.get("env") or []}
        own = {
            mount["mountPath"]: self._folder / metadata["uid"] / mount["name"]
            for mount in spec.get("volumeMounts") or []
            if any(v["name"] == mount["name"] and "emptyDir" in v for v in pod["spec"]["volumes"])
        }
        for path, folder in own.items():
            folder.mkdir(parents=True, exist_ok=True)
            for name, value in found.items():
                # A test's own folder may well be below this machine's /tmp.
                if value == path or (path == "/work" and value.startswith("/work/")):
                    found[name] = str(folder) + value.removeprefix(path)
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "HOSTNAME": metadata["name"],
            _UID_VARIABLE: metadata["uid"],
        } | found

    def _end(self, pod: Object) -> None:
        """Ends a deleted pod: SIGTERM to its first process, SIGKILL to all, then it is gone."""
        uid, container = pod["metadata"]["uid"], self._containers.get(pod["metadata"]["uid"])
        if container is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
            if container is None and pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Failed"
            self._finish(pod)
            return
        if uid not in self._kill_at:
            container.process.send_signal(signal.SIGTERM)
        grace_seconds = pod["metadata"].get("deletionGracePeriodSeconds", 30)
        began = self._kill_at.setdefault(uid, time.monotonic())
        if time.monotonic() - began > grace_seconds:
            self.kill(pod)

    def _report_end(self, pod: Object, code: int) -> None:
        container = self._containers[pod["metadata"]["uid"]]
        exit_code = 128 - code if code < 0 else code
        reason = container.reason or ("Completed" if exit_code == 0 else "Error")
        state = {"exitCode": exit_code, "reason": reason, "finishedAt": format_time()}
        phase = "Succeeded" if exit_code == 0 else "Failed"
        self._set_state(pod, phase, {"terminated": state})

    def _set_waiting(self, pod: Object, reason: str, message: str) -> None:
        self._set_state(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

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
        wanted = {"phase": phase, "containerStatuses": [shown]}
        if {key: pod["status"].get(key) for key in wanted} != wanted:
            pod["status"] |= wanted
            self._objects.touch("pods", pod)

    def _set_condition(
        self, pod: Object, kind: str, status: str, reason: str = "", message: str = ""
    ) -> None:
        set_condition(pod, kind, status, reason, message)
        self._objects.touch("pods", pod)

    async def run_command(self, websocket: WebSocket, pod: Object) -> None:
        """Carries `exec` over a websocket."""
        offered = websocket.scope["subprotocols"]
        protocol = next(each for each in self.protocols if each in offered)
        if pod["status"]["phase"] != "Running":
            await websocket.send_denial_response(_refuse_exec(pod))
            return
        await websocket.accept(protocol)
        process = await asyncio.create_subprocess_exec(
            *websocket.query_params.getlist("command"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.build_environment(pod),
            cwd="/",
        )
        incoming = asyncio.create_task(_feed(websocket, process))
        await asyncio.gather(
            _pump(websocket, process.stdout, _STDOUT), _pump(websocket, process.stderr, _STDERR)
        )
        code = await process.wait()
        incoming.cancel()
        status: Object = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(128 - code if code < 0 else code)}]
            status = {
                "metadata": {},
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code",
                "details": {"causes": causes},
            }
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())
            await websocket.close()


def set_condition(found: Object, kind: str, status: str, reason: str, message: str) -> None:
    conditions = [each for each in found["status"].get("conditions", []) if each["type"] != kind]
    condition = {"type": kind, "status": status, "lastTransitionTime": format_time()}
    condition |= {key: value for key, value in (("reason", reason), ("message", message)) if value}
    found["status"]["conditions"] = [*conditions, condition]


def _refuse_exec(pod: Object):
    from .api import make_status

    return make_status(400, f"pod {pod['metadata']['name']} is not running")


async def _feed(websocket: WebSocket, process: asyncio.subprocess.Process) -> None:
    """Passes the input on. It ends with its channel, or with the connection."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, ConnectionError):
        while data := await websocket.receive_bytes():
            if data[0] == _CLOSE:
                break
            process.stdin.write(data[1:])
            await process.stdin.drain()
    process.stdin.close()


async def _pump(websocket: WebSocket, output: asyncio.StreamReader, channel: int) -> None:
    while data := await output.read(32 << 10):
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.send_bytes(bytes([channel]) + data)
