"""An HTTP proxy from the network namespace of a gang to its store, and to nothing else.

    python -m pipeline_ops.launch.store_proxy RUN

The agent starts it before it enters the namespace, so the proxy stays outside. Then the agent sends
it a socket that listens on the loopback interface of the namespace, which only the gang reaches.
The proxy accepts connections there and opens its own connections outside. So it needs no address
that anybody else could connect to.

`https` is tunneled (CONNECT), so the proxy sees neither keys nor data. It forwards an `http`
request with the path in place of the URL, because some servers accept no other form. If the
environment names a proxy (HTTPS_PROXY, ...), the requests go through that proxy.

The proxy exits with the agent. It ignores SIGTERM, because workers save their state in the store
after SIGTERM.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pipeline_ops.system.host import die_with_parent

_MODULE = "pipeline_ops.launch.store_proxy"
_BLOCK_BYTES = 1 << 18
_MESSAGE_BYTES = 1 << 16
_CONNECT_SECONDS = 5.0
"""As in the clients of the store, which retry the request."""
_REQUEST_SECONDS = 300.0
"""The limit of a request in the clients of the store."""
_PORTS = {"http": 80, "https": 443}


class StoreProxy:
    """The agent's handle of the proxy. `select` finds it readable once the proxy has exited."""

    def __init__(self, run: str):
        """Starts the process of the proxy in the current namespace."""
        self._pipe, its_end = socket.socketpair()
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, run], stdin=its_end.fileno(), preexec_fn=_prepare
            )

    def open(self, hosts: Sequence[str]) -> str:
        """Returns the URL of the proxy in the current namespace.

        `hosts` are the allowed servers, as `host:port`. Their subdomains are allowed, too.
        """
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            socket.send_fds(self._pipe, [json.dumps(hosts).encode()], [listening.fileno()])
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

    def fileno(self) -> int:
        return self._pipe.fileno()


def _prepare() -> None:
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with socket.socket(fileno=0) as pipe:
        message, sockets, _, _ = socket.recv_fds(pipe, _MESSAGE_BYTES, 1)
        if sockets:  # otherwise the agent has ended
            asyncio.run(_serve(pipe, socket.socket(fileno=sockets[0]), json.loads(message)))


async def _serve(pipe: socket.socket, listening: socket.socket, hosts: Sequence[str]) -> None:
    """Serves until the agent's end of the pipe is closed."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe, ended.set)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _carry(reader, writer, hosts)

    server = await asyncio.start_server(carry, sock=listening, limit=_BLOCK_BYTES)
    await ended.wait()
    server.close()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hosts: Sequence[str]
) -> None:
    """Carries one connection of a client to the server that its first request names."""
    writers = [writer]
    try:
        request = _Request.parse(await reader.readuntil(b"\r\n\r\n"))
        if not request.is_for(hosts):
            name = f"{request.url.hostname}:{request.port}"
            _report_once(f"A process of the gang requested {name}, which is not its store.")
            writer.write(_refuse("403 Forbidden", f"the gang may reach only its store, not {name}"))
            return
        try:
            server_reader, server_writer = await request.connect()
        except OSError as error:
            problem = f"{request.hop.hostname}:{_get_port(request.hop)}: {_describe(error)}"
            _report_once(f"The store cannot be reached: {problem}.")
            writer.write(_refuse("502 Bad Gateway", problem))
            return
        writers.append(server_writer)
        if request.is_answered_here:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            server_writer.write(request.head)
        async with asyncio.timeout(None) as limit:
            await asyncio.gather(
                _copy(reader, server_writer, limit), _copy(server_reader, writer, limit)
            )
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):  # one side is gone, or both
        for each in writers:
            each.transport.abort()
    finally:
        for each in writers:
            each.close()


class _Request(NamedTuple):
    """The first request of a connection.

    Attributes:
      url: the URL of the server.
      hop: the URL of the proxy that the environment names for it, or of the server itself.
      head: the bytes to send to the hop.
      is_answered_here: whether this proxy opens the client's tunnel itself, and sends no head.
    """

    url: SplitResult
    hop: SplitResult
    head: bytes
    is_answered_here: bool

    @classmethod
    def parse(cls, head: bytes) -> _Request:
        """Parses the head of a request. Raises ValueError if it is not addressed to a proxy."""
        method, target, rest = head.decode("latin-1").split(" ", 2)
        is_tunnel = method == "CONNECT"
        url = urlsplit(f"https://{target}" if is_tunnel else target)
        if url.scheme not in _PORTS or not url.hostname:
            raise ValueError(target)
        version, fields = rest.split("\r\n", 1)
        if hop := _find_proxy(url):
            fields = _authorize(hop) + fields
        elif not is_tunnel:
            target = "/" + "".join(target.split("/", 3)[3:])
        if not is_tunnel:
            # Only this request is changed, so the next one must come on another connection.
            fields = "Connection: close\r\n" + fields
        head = f"{method} {target} {version}\r\n{fields}".encode("latin-1")
        return cls(url, hop or url, head, is_tunnel and not hop)

    @property
    def port(self) -> int:
        return _get_port(self.url)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the hop. A tunnel has the TLS of the client. Raises OSError."""
        has_tls = self.hop.scheme == "https" and not self.is_answered_here
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(
                self.hop.hostname,
                _get_port(self.hop),
                limit=_BLOCK_BYTES,
                ssl=has_tls or None,
                happy_eyeballs_delay=0.25,
            )

    def is_for(self, hosts: Sequence[str]) -> bool:
        """Returns whether the server or one of its parent domains is among these hosts."""
        return f".{self.url.hostname}:{self.port}".endswith(tuple(f".{host}" for host in hosts))


def _get_port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]


def _find_proxy(url: SplitResult) -> SplitResult | None:
    """Returns the proxy outside that the environment names for a URL, as for other programs."""
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or proxy_bypass(url.netloc.rpartition("@")[2], proxies):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _authorize(proxy: SplitResult) -> str:
    if proxy.username is None:
        return ""
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return f"Proxy-Authorization: Basic {b64encode(login).decode()}\r\n"


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout
) -> None:
    """Copies one direction to its end. The other one then has `_REQUEST_SECONDS` left."""
    while data := await reader.read(_BLOCK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    limit.reschedule(asyncio.get_running_loop().time() + _REQUEST_SECONDS)


@functools.cache
def _report_once(message: str) -> None:
    """Writes to the log of the host. A client retries its requests and may not show the cause."""
    print(message, file=sys.stderr, flush=True)


def _describe(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno and error.errno > 0:  # asyncio's own text repeats the address
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _refuse(status: str, message: str) -> bytes:
    """Returns a response in the form of a store's errors, whose message its clients show."""
    body = f"<Error><Code>StoreProxy</Code><Message>{message}</Message></Error>"
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        f"Content-Length: {len(body.encode())}\r\n\r\n{body}"
    ).encode()


if __name__ == "__main__":
    main()
