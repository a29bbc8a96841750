"""Runs a command in a pod, with this process's standard streams, as `kubectl exec --stdin` does.

    python -m pipeline_ops.places.pod_exec NAMESPACE CONTEXT POD COMMAND...

CONTEXT may be empty. Launchers of gangs reach their agents in this way. All bytes pass unchanged
and at once. The process ends with the exit code of the command, or with 255 when the connection is
lost. The end of the input ends the command's input. The protocol of Kubernetes before 1.30 cannot
say so: there it closes the connection, which has the same effect on an agent.

The connection is that of the official client (TLS, proxy, credentials). The frames are read here:
the client's methods would import the models of all objects, and collect output without a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from pipeline_ops.errors import ConfigError, ExitCode, MachineError, TrainyardError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

CONTAINER = "trainyard"
"""The name of the only container of a pod."""
RBAC_FILE = "docker/kubernetes/rbac.yaml"
_MODULE = "pipeline_ops.places.pod_exec"
_CONNECTION_LOST = 255
_CONNECT_SECONDS, _CLOSE_SECONDS = 30, 1
_CHUNK_BYTES = 16 << 10
"""Less than a socket takes at once when it is writable, so that no write waits."""

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
"""Channels: the first byte of each frame. The first three are this process's file descriptors."""
_CLOSE_FRAME = 8
"""The opcode with which the other side closes the connection (RFC 6455)."""


def build_exec_command(
    namespace: str, context: str | None, pod: str, command: Sequence[str]
) -> list[str]:
    """The command that runs another command in a pod. Pure."""
    return [sys.executable, "-m", _MODULE, namespace, context or "", pod, *command]


def open_configuration(context: str | None) -> Configuration:
    """The access of the kubeconfig file, or of the pod around this process.

    Raises ConfigError if there is no such access, or the client is not installed.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise ConfigError(
            "the hosts file has launcher: kubernetes, and the client of Kubernetes is not "
            "installed",
            "Install the extra kubernetes: pip install '.[kubernetes]' in a clone of Trainyard",
        ) from None
    configuration = client.Configuration()
    load_file: Callable[..., None] = config.load_kube_config  # neither function has types
    load_pod: Callable[..., None] = config.load_incluster_config
    file = os.environ.get("KUBECONFIG")
    try:
        if context is None and file is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_pod(client_configuration=configuration)
        else:
            load_file(file, context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ConfigError(
            f"there is no access to Kubernetes: {error}",
            "Set KUBECONFIG, correct `context` in the hosts file, or run Airflow in the cluster "
            "with a service account",
        ) from None
    return configuration


def get_auth_headers(configuration: Any) -> dict[str, str]:
    """The headers with this account's credentials, which are renewed if they have expired."""
    settings = configuration.auth_settings().values()
    return {setting["key"]: setting["value"] for setting in settings}


def read_message(body: bytes) -> str:
    """The message of the server in the body of its answer, or the body itself."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    return " ".join(text.split())[:2000]


def main() -> int:
    namespace, context, pod, *command = sys.argv[1:]
    try:
        return carry(connect(namespace, context or None, pod, command))
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def connect(namespace: str, context: str | None, pod: str, command: Sequence[str]) -> Any:
    """Starts a command in a pod. Returns the websocket to it.

    Raises ConfigError if this account has no right to do so, and MachineError if it fails.
    """
    configuration: Any = open_configuration(context)
    import websocket
    from kubernetes.stream import ws_client

    query = [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("container", CONTAINER)]
    query += [("command", word) for word in command]
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{urlencode(query)}"
    headers = {"sec-websocket-protocol": ",".join(_PROTOCOLS)} | get_auth_headers(configuration)
    websocket.setdefaulttimeout(_CONNECT_SECONDS)
    try:
        open_websocket: Callable[..., Any] = ws_client.create_websocket  # it has no types
        connection = open_websocket(
            configuration, f"ws{configuration.host.removeprefix('http')}{path}", headers
        )
    except websocket.WebSocketBadStatusException as error:
        status, message = error.status_code, read_message(error.resp_body or b"")
        problem = f"no command can be run in the pod {pod} ({status}): {message}"
        if status in (401, 403):
            raise ConfigError(f"{problem}. {RBAC_FILE} has the rights that it needs") from None
        raise MachineError(problem) from None
    except (websocket.WebSocketException, OSError) as error:
        raise MachineError(f"Kubernetes can't be reached: {error}") from None
    connection.settimeout(None)
    return connection


def carry(connection: Any) -> int:
    """Carries the streams until the command ends. Returns its exit code."""
    from websocket import WebSocketException

    inputs, status = [_STDIN], b""
    can_end_input = connection.getheaders().get("sec-websocket-protocol") == _PROTOCOLS[0]
    try:
        while True:
            # Decrypted bytes may wait in the SSL socket.
            has_bytes = isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending()
            if has_bytes or connection in select.select([connection, *inputs], [], [])[0]:
                opcode, frame = connection.recv_data_frame(True)
                if opcode == _CLOSE_FRAME:
                    break
                status += _forward(frame.data)
                continue
            # Output is read before input is sent, so two full pipes do not block.
            readable, writable, _ = select.select([connection], [connection], [])
            if readable or not writable:
                continue
            if data := os.read(_STDIN, _CHUNK_BYTES):
                connection.send_binary(bytes([_STDIN]) + data)
                continue
            inputs = []
            if not can_end_input:
                connection.close(timeout=_CLOSE_SECONDS)
                break
            connection.send_binary(bytes([_CLOSE, _STDIN]))
    except (WebSocketException, OSError) as error:
        if not status:
            print(f"the connection to the pod is lost: {error}", file=sys.stderr)
    finally:
        connection.shutdown()
    return _parse_exit_code(status)


def _forward(data: bytes) -> bytes:
    """Forwards the output. Returns the exit status when the message is one."""
    channel, data = (data[0], data[1:]) if data else (_CLOSE, b"")
    while channel in (_STDOUT, _STDERR) and data:
        data = data[os.write(channel, data) :]
    return data if channel == _STATUS else b""


def _parse_exit_code(text: bytes) -> int:
    """The exit code in the `Status` that ends a command."""
    try:
        status = json.loads(text)
    except ValueError:
        return _CONNECTION_LOST
    if status.get("status") == "Success":
        return ExitCode.SUCCESS
    for cause in status.get("details", {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    print(status.get("message", "the command could not be run"), file=sys.stderr)
    return _CONNECTION_LOST


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the regular end of the interpreter frees the client for a second
