"""What a kubelet does for `exec`: it runs a command and carries its streams over a websocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence

from starlette.websockets import WebSocket, WebSocketDisconnect

NEW, OLD = "v5.channel.k8s.io", "v4.channel.k8s.io"
"""The protocols. Before Kubernetes 1.30 there was only the old one."""
_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255


async def run_command(
    websocket: WebSocket, protocols: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Runs the command of a request, with the first protocol of `protocols` that it offers."""
    offered = websocket.scope["subprotocols"]
    await websocket.accept(next(each for each in protocols if each in offered))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *websocket.query_params.getlist("command"),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment,
        cwd="/",
    )
    incoming = asyncio.create_task(_feed(websocket, process))
    await asyncio.gather(
        _pump(websocket, process.stdout, _STDOUT), _pump(websocket, process.stderr, _STDERR)
    )
    code = await process.wait()
    incoming.cancel()
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await websocket.send_bytes(bytes([_ERROR]) + json.dumps(_describe_end(code)).encode())
        await websocket.close()


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


def _describe_end(code: int) -> dict[str, object]:
    """The `Status` that ends a command."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    exit_code = 128 - code if code < 0 else code
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": "command terminated with non-zero exit code",
        "details": {"causes": [{"reason": "ExitCode", "message": str(exit_code)}]},
    }
