"""Several clients of one bucket in memory, of which one at a time makes its next request.

Each client is a function of the product, run in a thread that stops before each request, each
sleep and each wait. A test decides which client goes on, and how its request ends: it may be lost,
or its answer, or the client is killed before or after it. A killed client makes no further request,
whatever its `finally` blocks do. Time passes only when the test says so, or when a client sleeps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import obstore
from obstore.store import MemoryStore

from pipeline_ops.registry import aliases
from pipeline_ops.retention import collector
from pipeline_ops.storage import object_store, request_cache
from pipeline_ops.system import lease, locks

Fate = Literal["done", "request lost", "answer lost", "killed before", "killed after"]
ROOT = "s3://bucket/root"
EPOCH = 1.8e9
_WRITES = ("put", "delete")


class Killed(BaseException):
    """The end of a client's process."""


@dataclasses.dataclass
class Client:
    """A process that runs one operation.

    Attributes:
      name: its machine, too.
      clock_offset: the seconds by which its clock is wrong.
      clock_rate: the seconds that its clock counts in one second.
      deadline: the time at which it is killed.
    """

    name: str
    clock_offset: float
    clock_rate: float
    deadline: float
    threads: list[ClientThread] = dataclasses.field(default_factory=list)
    is_killed: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.threads[0].is_done


class ClientThread:
    """One thread of a client, with the interface of `threading.Thread`."""

    def __init__(
        self, target: Callable[[], Any], name: str = "", daemon: bool = True, client: Any = None
    ):
        self.client: Client = client or _current.thread.client
        self.simulation: Simulation = _current.simulation if client is None else client.simulation
        self.is_ready: Callable[[], bool] = lambda: True
        self.wakes_at: float | None = None
        self.fate: Fate = "done"
        self.is_done, self.last_turn = False, 0
        self.go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(target,), daemon=True)

    def start(self) -> None:
        self.client.threads.append(self)
        self._thread.start()

    def join(self) -> None:
        self.simulation.pause(lambda: self.is_done)

    def _run(self, target: Callable[[], Any]) -> None:
        _current.thread, _current.simulation = self, self.simulation
        self.go.acquire()
        try:
            result = target()
            if self is self.client.threads[0]:
                self.client.result = result
        except (Exception, Killed) as error:
            self.client.error = error
        self.is_done = True
        self.simulation.arrived.release()


class _Current(threading.local):
    thread: ClientThread | None = None
    simulation: Simulation | None = None


_current = _Current()


class Event:
    """A `threading.Event` whose wait is over when the test says so."""

    def __init__(self) -> None:
        self._is_set, self._simulation = False, _current.simulation

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        self._simulation.pause(lambda: self._is_set, seconds)
        return self._is_set


class Simulation:
    """A bucket and its clients.

    Attributes:
      now: the true time in seconds, which is the bucket's.
      writes: the number of changes of the bucket so far.
    """

    def __init__(self) -> None:
        self.now, self.writes, self._turns = EPOCH, 0, 0
        self.arrived = threading.Semaphore(0)
        self._memory = MemoryStore()
        self._modified: dict[str, float] = {}
        self._patches: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Simulation:
        clock = SimpleNamespace(
            time=lambda: self._read_clock(0.0),
            monotonic=lambda: self._read_clock(EPOCH),
            sleep=lambda seconds: self.pause(lambda: False, seconds),
            gmtime=time.gmtime,
            strftime=time.strftime,
        )
        for module in (aliases, collector, lease, locks):
            self._patch(module, "time", clock)
        self._patch(lease, "threading", SimpleNamespace(Event=Event, Thread=ClientThread))
        self._patch(lease, "get_pid_space", lambda: _current.thread.client.name)
        self._patch(object_store, "open_client", lambda bucket, options: self._memory)
        self._patch(object_store, "obstore", _Requests(self))
        self._patch(request_cache, "ThreadPoolExecutor", _InOrder)
        return self

    def __exit__(self, *error: object) -> None:
        for module, name, value in reversed(self._patches):
            setattr(module, name, value)

    def _patch(self, module: Any, name: str, value: Any) -> None:
        self._patches.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def start(
        self,
        name: str,
        operation: Callable[[], Any],
        clock_offset: float = 0.0,
        clock_rate: float = 1.0,
        seconds: float = 3600.0,
    ) -> Client:
        """Starts a client, which stops before its first request."""
        client = Client(name, clock_offset, clock_rate, self.now + seconds)
        client.simulation = self
        ClientThread(operation, client=client).start()
        return client

    def let(self, client: Client, fate: Fate = "done") -> bool:
        """Lets a client make its next request. Returns False if it is over.

        If all of its threads sleep, time passes until the first of them wakes up.
        """
        if client.is_over:
            return False
        waiting = [each for each in client.threads if not each.is_done]
        ready = [each for each in waiting if self._can_go(each)]
        if not ready:
            ready = [min(waiting, key=lambda each: each.wakes_at or float("inf"))]
            assert ready[0].wakes_at is not None, f"{client.name} waits for itself"
            self.now = max(self.now, ready[0].wakes_at)
        thread = min(ready, key=lambda each: each.last_turn)
        self._turns += 1
        thread.last_turn, thread.fate = self._turns, fate
        client.is_killed |= self.now > client.deadline
        self._resume(thread)
        if client.is_killed:
            self.kill(client)
        return True

    def kill(self, client: Client) -> None:
        """Ends a client where it stands."""
        client.is_killed = True
        for thread in client.threads:
            if not thread.is_done:
                self._resume(thread)

    def _resume(self, thread: ClientThread) -> None:
        """Returns when it stops at its next request, or is over."""
        thread.go.release()
        self.arrived.acquire()

    def _can_go(self, thread: ClientThread) -> bool:
        has_slept = thread.wakes_at is not None and thread.wakes_at <= self.now
        return has_slept or thread.is_ready()

    def pause(self, is_ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Stops the calling thread until it is ready, or until a time of its clock is over."""
        if (thread := _current.thread) is None:
            return
        client = thread.client
        thread.is_ready = is_ready
        thread.wakes_at = None if seconds is None else self.now + seconds / client.clock_rate
        if not client.is_killed:
            self.arrived.release()
            thread.go.acquire()
        thread.is_ready, thread.wakes_at = (lambda: True), None
        if client.is_killed:
            raise Killed

    def request(self, name: str, function: Callable[[], Any]) -> Any:
        """Makes a request, once the test lets the calling client do so."""
        if (thread := _current.thread) is None:  # a look of the test itself
            return function()
        self.pause(lambda: True)
        fate, thread.fate = thread.fate, "done"
        if fate == "killed before":
            thread.client.is_killed = True
            raise Killed
        if fate == "request lost":
            raise obstore.exceptions.GenericError(f"{name}: timeout")
        self.writes += name in _WRITES
        answer = function()
        if fate == "killed after":
            thread.client.is_killed = True
            raise Killed
        if fate == "answer lost":
            raise obstore.exceptions.GenericError(f"{name}: timeout")
        return answer

    def put(self, _: Any, path: str, *args: Any, **options: Any) -> Any:
        answer = obstore.put(self._memory, path, *args, **options)
        self._modified[path] = self.now
        return answer

    def get(self, *args: Any, **options: Any) -> Any:
        try:
            return obstore.get(*args, **options)
        except obstore.exceptions.GenericError as error:
            raise obstore.exceptions.GenericError(f"InvalidRange {error}") from None

    def head(self, *args: Any) -> Any:
        return self._date(obstore.head(*args))

    def list(self, *args: Any, **options: Any) -> Any:
        found = [self._date(meta) for meta in obstore.list(*args, **options).collect()]
        return SimpleNamespace(collect=lambda: found)

    def list_with_delimiter(self, *args: Any) -> Any:
        found = obstore.list_with_delimiter(*args)
        return found | {"objects": [self._date(meta) for meta in found["objects"]]}

    def _date(self, meta: dict[str, Any]) -> dict[str, Any]:
        """With the simulated time, in full seconds, as some stores count."""
        modified = dt.datetime.fromtimestamp(int(self._modified[meta["path"]]), dt.UTC)
        return meta | {"last_modified": modified}

    def _read_clock(self, start: float) -> float:
        client = _current.thread.client if _current.thread else None
        if client is None:
            return self.now - start
        return (self.now - EPOCH) * client.clock_rate + EPOCH - start + client.clock_offset


class _Requests:
    """The functions of obstore. Each call is one request."""

    exceptions = obstore.exceptions

    def __init__(self, simulation: Simulation):
        self._simulation = simulation

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._simulation, name, None) or getattr(obstore, name)
        return lambda *args, **options: self._simulation.request(
            name, partial(function, *args, **options)
        )


class _InOrder:
    """A pool that calls each function at once, so that the order of requests can be repeated."""

    def __init__(self, threads: int):
        pass

    def __enter__(self) -> _InOrder:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def shutdown(self, **options: bool) -> None:
        pass

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return map(function, *arguments)

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Nobody waits for the result, and a real pool keeps an error to itself."""
        with contextlib.suppress(Exception):
            function(*args)
