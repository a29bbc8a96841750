"""The thread that copies checkpoints to the store. Training never waits for it.

If uploads are slower than checkpoints, the newest checkpoint is next, and those between are left
out. A failed upload is a warning: the next checkpoint is another chance.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline_ops.errors import TrainyardError
from pipeline_ops.storage.atomic import translate_write_errors
from pipeline_ops.storage.staging import remove_own_folder
from pipeline_ops.training.checkpointing.checkpoint_store import CheckpointStore

_FOLDER = ".uploads"


class UploadThread:
    """Uploads the checkpoints of the chief.

    Args:
      store: The checkpoints in the store.
      folder: The folder of the checkpoints on this host.
      warn: Called with a message for each failed upload, by the thread.
    """

    def __init__(self, store: CheckpointStore, folder: Path, warn: Callable[[str], None]):
        self._store, self._folder, self._warn = store, folder / _FOLDER, warn
        self._changed = threading.Condition()
        self._next: int | None = None
        self._is_busy = False
        self._thread: threading.Thread | None = None

    def submit(self, step: int, files: Iterable[Path]) -> None:
        """Takes a checkpoint, and links its files, because they are removed in the meantime."""
        with self._changed:
            if self._thread is None:
                remove_own_folder(self._folder)
                self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
                self._thread.start()
            if self._next is not None:
                remove_own_folder(self._folder / str(self._next))
            links = self._folder / str(step)
            with translate_write_errors(links):
                remove_own_folder(links)
                links.mkdir(parents=True)
                for file in files:
                    os.link(file, links / file.name)
            self._next = step
            self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until everything is in the store or has failed. Returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._next is None and not self._is_busy, timeout_seconds
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while self._next is None:
                    self._changed.wait()
                step, self._next, self._is_busy = self._next, None, True
                links = (self._folder / str(step)).rename(self._folder / "current")
            try:
                self._store.upload(step, {file.name: file for file in links.iterdir()})
            except (TrainyardError, OSError) as error:
                self._warn(f"the checkpoint of step {step} was not stored: {error}")
            remove_own_folder(links)
