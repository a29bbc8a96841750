"""A fault proxy in a process of its own, as a test sees it."""

from __future__ import annotations

import json
import sys
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .fault_proxy import Traffic
from .faults import Faults
from .servers import ServerProcess


class RemoteFaultProxy(ServerProcess):
    """A `FaultProxy` that shares no interpreter with the test: for measured bandwidths.

    It has the same `address`, `faults`, `traffic` and `reset_traffic`.
    """

    control: str

    def __init__(self, upstream: str):
        super().__init__(
            [sys.executable, Path(__file__).with_name("proxy_process.py"), upstream],
            ("address", "control"),
        )

    @property
    def faults(self) -> Faults:
        return Faults(**self._ask("GET")["faults"])

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._ask("PUT", asdict(faults))

    @property
    def traffic(self) -> dict[str, Traffic]:
        return {method: Traffic(**found) for method, found in self._ask("GET")["traffic"].items()}

    def reset_traffic(self) -> None:
        self._ask("DELETE")

    def _ask(self, method: str, content: Any = None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.control, body, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
