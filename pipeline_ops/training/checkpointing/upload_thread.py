"""The thread that copies checkpoints to the store. Training never waits for it.

If uploads are slower than checkpoints, the newest checkpoint is next, and those between are left
out. A failed upload is a warning: the next checkpoint is another chance.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pipeline_ops.storage.atomic import link_file
from pipeline_ops.storage.staging import remove_own_folder
from pipeline_ops.training.checkpointing.checkpoint_store import CheckpointStore

_FOLDER = ".uploads"


class UploadThread:
    """Uploads the checkpoints of the chief.

    Args:
      store: The checkpoints in the store.
      folder: The folder of the checkpoints on this host.
      warn: Called with a message for each failed upload.
    """

    def __init__(self, store: CheckpointStore, folder: Path, warn: Callable[[str], None]):
        self._store, self._folder, self._warn = store, folder / _FOLDER, warn
        self._changed = threading.Condition()
        self._next: tuple[int, int] | None = None
        """The number and the step of the checkpoint to upload next."""
        self._num_submitted = self._last_stored = 0
        self._is_busy = False
        self._thread: threading.Thread | None = None

    def submit(self, step: int, files: Iterable[Path]) -> None:
        """Takes a checkpoint, and links its files, because they are removed in the meantime."""
        with self._changed, self._warn_on_failure(f"the checkpoint of step {step} was not stored"):
            self._num_submitted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
                self._thread.start()
                remove_own_folder(self._folder)
            self._link(files, self._get_links(self._num_submitted))
            if self._next is not None:
                remove_own_folder(self._get_links(self._next[0]))
            self._next = self._num_submitted, step
            self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until everything is in the store or has failed.

        Returns:
          Whether the newest checkpoint is in the store.
        """
        with self._changed:
            is_idle = self._changed.wait_for(
                lambda: self._next is None and not self._is_busy, timeout_seconds
            )
            return is_idle and self._last_stored == self._num_submitted

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while self._next is None:
                    self._changed.wait()
                (number, step), self._next, self._is_busy = self._next, None, True
            links = self._get_links(number)
            with self._warn_on_failure(f"the checkpoint of step {step} was not stored"):
                self._store.upload(step, {file.name: file for file in links.iterdir()})
                self._last_stored = number
            with self._warn_on_failure(f"{links} was not removed"):
                remove_own_folder(links)

    def _get_links(self, number: int) -> Path:
        """A folder for each checkpoint, so that what one has left does not stop the next one."""
        return self._folder / str(number)

    def _link(self, files: Iterable[Path], links: Path) -> None:
        """Links files into a new folder. After an error, nothing of it is left."""
        with contextlib.ExitStack() as stack:
            links.mkdir(parents=True)
            stack.callback(remove_own_folder, links)
            for file in files:
                link_file(file, links / file.name)
            stack.pop_all()

    @contextlib.contextmanager
    def _warn_on_failure(self, failure: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._warn(f"{failure}: {error}")
