"""A server that polls a folder of versions as TensorFlow Serving does by default.

It lists the folder, loads the entry with the highest number when that changes, and keeps it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

from publishers import wait_until

from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.errors import DataError

_POLL_SECONDS = 0.001


def find_highest(folder: Path) -> Path | None:
    """Finds the entry with the highest number.

    TensorFlow's `safe_strto64` takes blanks around a number, and zeros before it.
    """
    numbers = {}
    for name in os.listdir(folder) if folder.exists() else []:
        if re.fullmatch(r"\s*\+?[0-9]+\s*", name, re.ASCII):
            numbers[int(name)] = name
    return folder / numbers[max(numbers)] if numbers else None


class PollingServer:
    """Loads the highest number whenever it changes.

    `served` are the names of the loaded entries, in order. `damage` is what was wrong with them.
    """

    def __init__(self, folder: Path):
        self.folder, self.served, self.damage, self._looks = folder, [], [], 0
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._run)

    def __enter__(self) -> PollingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        """Waits until the server has looked again."""
        looks = self._looks
        wait_until(lambda: self._looks > looks + 1 or not self._thread.is_alive())

    def _run(self) -> None:
        while not self._stop.is_set():
            highest = find_highest(self.folder)
            if highest and (not self.served or self.served[-1] != highest.name):
                self._load(highest)
            self._looks += 1
            time.sleep(_POLL_SECONDS)

    def _load(self, highest: Path) -> None:
        try:
            found = find_damage(highest / NAME, read_manifest(highest / NAME), checksums=True)
        except DataError as error:
            found = [str(error)]
        if find_highest(self.folder) != highest:
            return  # withdrawn while it was loaded; a server tries again
        self.damage += found
        self.served.append(highest.name)
