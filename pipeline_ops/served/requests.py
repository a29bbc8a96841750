"""Counts the requests to a model in service, for `evaluate.serving_skew`.

`RequestStatistics` is for any program that answers requests with a published model, or asks a
server such as TensorFlow Serving:

    with RequestStatistics("s3://bucket/models/digits", 3, class_names) as statistics:
        answer = ask(image_bytes)               # {"probabilities": [...], "classes": 7}
        statistics.add(image_bytes, answer)

It keeps counts only (`contract/serving_statistics.py`): never an image, a key, a file name or an
address. A request costs microseconds, because it only counts the answer and puts the image into a
short queue. A thread measures the queue. It works for a fixed part of the time, so of very many
images it measures a sample.

A window is written every WINDOW_SECONDS and at the end. A killed process loses one window. A store
that cannot be written to never breaks a request: the reason is logged once, and the counts stay for
the next window.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from pipeline_ops.contract.features import CHANNELS, Histogram, merge_histograms
from pipeline_ops.contract.serving_statistics import MAX_CLASSES, MAX_NAME, Property, ServingWindow
from pipeline_ops.errors import TrainyardError
from pipeline_ops.registry.serving_statistics import (
    locate_statistics,
    remove_old_days,
    write_window,
)
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StorePath

WINDOW_SECONDS = 600.0
MAX_SHARE = 0.02
"""The part of one core that measuring may take."""
MIN_SCORE = 0.5
"""Detections with a lower score are not counted."""
_MAX_WAITING, _MAX_WAITING_BYTES = 64, 64 << 20
_CLOSE_SECONDS = 5.0
_DAY_SECONDS = 86400.0
_MIN_MEASURED_ROWS = 64
"""As in the statistics of data sets."""
_USED_OUTPUTS = ("classes", "scores", "probabilities")
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_MODES = {
    **dict.fromkeys(("RGB", "YCbCr"), "colour"),
    **dict.fromkeys(("1", "L"), "grey"),
    **dict.fromkeys(("I", "I;16", "I;16B"), "16 bit"),
    "P": "palette",
    "CMYK": "CMYK",
}
_ORIENTATION_TAG, _SIDEWAYS = 0x0112, (5, 6, 7, 8)
_log = logging.getLogger(__name__)

ToInput = Callable[[bytes], np.ndarray]
"""Decodes a file to the image that the model gets: [height, width, channels], 0 to 255."""


class RequestStatistics:
    """Counts the requests to one version of a model, and writes the counts. For any threads.

    Args:
      model: the location of the model in its registry. The statistics are written beside it.
      version: the number of the version that answers.
      class_names: the names of the classes by index. Without them, classes are named by index.
      to_input: decodes a file as the model does. Without it, brightness, contrast and the means of
        channels are not measured.
      max_share: the part of one core for measuring. With 1, the thread does not pause.
    """

    def __init__(
        self,
        model: StorePath | str,
        version: int,
        class_names: Sequence[str] = (),
        to_input: ToInput | None = None,
        window_seconds: float = WINDOW_SECONDS,
        max_share: float = MAX_SHARE,
    ):
        if version < 1:
            raise ValueError(f"version must be the number of a published version, got {version}")
        self.folder, self.version = locate_statistics(model), version
        self._model, self._class_names = str(model).rstrip("/").rpartition("/")[2], class_names
        self._to_input, self._window_seconds = to_input, window_seconds
        self._pause_factor = 1 / max_share - 1
        self._lock, self._measure_lock = threading.Condition(), threading.RLock()
        self._counts, self._waiting, self._waiting_bytes = _Counts(), deque[_Waiting](), 0
        self._thread: threading.Thread | None = None
        self._is_closed, self._problem, self._removed_at = False, "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(
        self,
        image_bytes: bytes | None,
        outputs: Mapping[str, Any],
        input_HWC: np.ndarray | None = None,
    ) -> None:
        """Counts one image and its answer.

        Args:
          image_bytes: the file, or None if the request had pixels.
          outputs: the outputs of the model for this image by name, as arrays or as lists.
          input_HWC: the image as the model got it, 0 to 255, if the caller has it.
        """
        try:
            answer = _read_answer(outputs, self._class_names)
        except Exception:  # an answer of another form is counted without a class
            answer = _Answer((), None)
        num_bytes = len(image_bytes or b"") + (0 if input_HWC is None else input_HWC.nbytes)
        with self._lock:
            if self._is_closed:
                return
            self._counts.add_answer(answer)
            is_full = (
                len(self._waiting) >= _MAX_WAITING
                or self._waiting_bytes + num_bytes > _MAX_WAITING_BYTES
            )
            if num_bytes and not is_full:
                pixels = None if input_HWC is None else np.array(input_HWC)  # not the whole batch
                self._waiting.append(_Waiting(image_bytes, pixels, num_bytes))
                self._waiting_bytes += num_bytes
                self._lock.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="statistics", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Measures the images that wait, and writes a window if there were requests."""
        with self._measure_lock:
            deadline = time.monotonic() + _CLOSE_SECONDS / 2
            while time.monotonic() < deadline and self._measure_next() is not None:
                pass
            with self._lock:
                counts, self._counts = self._counts, _Counts()
                self._waiting.clear()  # an image is measured in the window that counts it, or never
                self._waiting_bytes = 0
            if counts.num_images and not self._try_write(counts):
                with self._lock:
                    self._counts.add(counts)

    def close(self) -> None:
        """Ends the counting, and writes the last window. Waits a few seconds at most."""
        with self._lock:
            self._is_closed = True
            self._lock.notify()
        if self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        next_flush = time.monotonic() + self._window_seconds
        while not self._is_closed:
            seconds = self._measure_next()
            left = next_flush - time.monotonic()
            if seconds is None:
                self._wait(left, lambda: self._is_closed or bool(self._waiting))
            else:
                self._wait(min(left, seconds * self._pause_factor), lambda: self._is_closed)
            if time.monotonic() >= next_flush:
                self.flush()
                next_flush = time.monotonic() + self._window_seconds
        self.flush()

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        with self._lock:
            self._lock.wait_for(is_over, max(0.0, seconds))

    def _measure_next(self) -> float | None:
        """Measures one image. Returns the seconds that it took, or None if no image waits."""
        with self._measure_lock:
            with self._lock:
                if not self._waiting:
                    return None
                waiting = self._waiting.popleft()
                self._waiting_bytes -= waiting.num_bytes
            start = time.monotonic()
            try:
                measured = _measure(waiting, self._to_input)
            except Exception as error:  # a hostile file makes a decoder raise nearly anything
                _log.debug("an image of a request cannot be measured: %s", error)
                measured = None
            with self._lock:
                self._counts.add_measured(measured)
            return time.monotonic() - start

    def _try_write(self, counts: _Counts) -> bool:
        try:
            window = counts.to_window(self._model, self.version, int(time.time()))
            with wait_at_most(int(_CLOSE_SECONDS)):
                write_window(self.folder, window)
            self._problem = ""
        except (TrainyardError, OSError, ValueError) as error:
            self._warn("statistics of requests are not written, and serving goes on", error)
            return False
        if time.time() - self._removed_at > _DAY_SECONDS:
            self._removed_at = time.time()
            try:
                with wait_at_most(int(_CLOSE_SECONDS)):
                    remove_old_days(self.folder, self._removed_at)
            except (TrainyardError, OSError) as error:
                self._warn("old statistics of requests are not removed", error)
        return True

    def _warn(self, problem: str, error: Exception) -> None:
        if self._problem != str(error):
            self._problem = str(error)
            _log.warning("%s: %s", problem, error)


class _Waiting(NamedTuple):
    """An image that waits to be measured."""

    image_bytes: bytes | None
    input_HWC: np.ndarray | None
    num_bytes: int


class _Answer(NamedTuple):
    """The classes of an answer, several of a detector, and its best score if it has one."""

    labels: Sequence[str]
    score: float | None


class _Measured(NamedTuple):
    """The measurements of one image."""

    features: Mapping[str, float]
    properties: Mapping[Property, str]


class _Counts:
    """The counts of a window. The caller holds a lock."""

    def __init__(self) -> None:
        self.start = int(time.time())
        self.num_images = self.num_measured = self.num_unreadable = 0
        self.features: dict[str, Histogram] = {}
        self.labels = Counter[str]()
        self.properties: dict[Property, Counter[str]] = {}

    def add_answer(self, answer: _Answer) -> None:
        if not self.num_images:
            self.start = int(time.time())
        self.num_images += 1
        for label in answer.labels:
            if label in self.labels or len(self.labels) < MAX_CLASSES:
                self.labels[label] += 1
        if answer.score is not None:
            self._count("score", answer.score)

    def add_measured(self, measured: _Measured | None) -> None:
        if measured is None:
            self.num_unreadable += 1
            return
        self.num_measured += 1
        for name, value in measured.features.items():
            self._count(name, value)
        for kind, found in measured.properties.items():
            self.properties.setdefault(kind, Counter())[found] += 1

    def add(self, other: _Counts) -> None:
        """Adds the counts of a window that could not be written."""
        self.start = min(self.start, other.start)
        self.num_images += other.num_images
        self.num_measured += other.num_measured
        self.num_unreadable += other.num_unreadable
        self.labels.update(other.labels)
        for name, histogram in other.features.items():
            parts = [histogram, *([self.features[name]] if name in self.features else [])]
            self.features[name] = merge_histograms(parts)
        for kind, found in other.properties.items():
            self.properties.setdefault(kind, Counter()).update(found)

    def to_window(self, model: str, version: int, end: int) -> ServingWindow:
        return ServingWindow(
            model=model,
            version=version,
            start=min(self.start, end),
            end=end,
            num_images=self.num_images,
            num_measured=self.num_measured,
            num_unreadable=self.num_unreadable,
            features=self.features,
            labels=dict(self.labels),
            properties={kind: dict(found) for kind, found in self.properties.items()},
        )

    def _count(self, feature: str, value: float) -> None:
        if feature not in self.features:
            self.features[feature] = Histogram.make_empty(feature)
        self.features[feature].add(feature, value)


def _read_answer(outputs: Mapping[str, Any], class_names: Sequence[str]) -> _Answer:
    """Reads the outputs of a classifier or of a detector. Others have neither class nor score."""

    def name(index: Any) -> str:
        known = 0 <= int(index) < len(class_names)
        return (class_names[int(index)] if known else str(int(index)))[:MAX_NAME]

    if "scores" in outputs and "classes" in outputs:
        scores = np.asarray(outputs["scores"], float)
        chosen = np.asarray(outputs["classes"])[scores >= MIN_SCORE]
        return _Answer([name(each) for each in chosen], _limit(scores.max(initial=0.0)))
    if "probabilities" in outputs:
        values = np.asarray(outputs["probabilities"], float)
        return _Answer([name(outputs.get("classes", values.argmax()))], _limit(values.max()))
    return _Answer((), None)


def _limit(score: float) -> float | None:
    return min(1.0, max(0.0, float(score))) if np.isfinite(score) else None


def _measure(waiting: _Waiting, to_input: ToInput | None) -> _Measured:
    features, properties = dict[str, float](), dict[Property, str]()
    if waiting.image_bytes is not None:
        features, properties = _measure_header(waiting.image_bytes)
    image_HWC = waiting.input_HWC
    if image_HWC is None and waiting.image_bytes is not None and to_input:
        image_HWC = to_input(waiting.image_bytes)
    if image_HWC is not None:
        features |= _measure_pixels(image_HWC)
    return _Measured(features, properties)


def _measure_header(data: bytes) -> tuple[dict[str, float], dict[Property, str]]:
    """Measures what is known without decoding. Sizes are those of the upright image."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        width, height, kind, mode = image.width, image.height, image.format, image.mode
        # Pillow decodes a PNG to look for EXIF behind its pixels.
        has_exif = kind != "PNG" or "exif" in image.info
        orientation = image.getexif().get(_ORIENTATION_TAG, 1) if has_exif else 1
        is_transparent = image.has_transparency_data
    if orientation in _SIDEWAYS and kind != "TIFF":  # Pillow gives the upright size of TIFF
        width, height = height, width
    name = "alpha" if is_transparent else _MODES.get(mode, "other")
    if kind == "PNG" and data[24:25] == b"\x10":  # Pillow opens 16 bits of a colour as 8
        name = "16 bit"
    features = {
        "image_width": width,
        "image_height": height,
        "image_aspect": width / height,
        "image_megapixels": width * height / 1e6,
        "image_bytes": len(data),
    }
    known = orientation if orientation in range(1, 9) else 1
    return features, {"format": str(kind), "mode": name, "orientation": str(known)}


def _measure_pixels(image_HWC: np.ndarray) -> dict[str, float]:
    """Measures every n-th row, as the statistics of data sets do with stored images."""
    rows = image_HWC[:: max(1, image_HWC.shape[0] // _MIN_MEASURED_ROWS)].astype(np.float64)
    found = {"brightness": float(rows.mean()), "contrast": float(rows.std())}
    if image_HWC.shape[2] == len(CHANNELS):
        found |= dict(zip(CHANNELS, rows.mean((0, 1)).tolist(), strict=True))
    if not np.isfinite(list(found.values())).all():
        raise ValueError("the pixels are not finite")
    return found


class ServedModel(Protocol):
    """A loaded version that answers requests."""

    number: int
    class_names: list[str]

    to_input: ToInput | None


class ServerStatistics:
    """Counts the requests to a server, whose version may change."""

    def __init__(self, model: StorePath | str, window_seconds: float = WINDOW_SECONDS):
        self._model, self._window_seconds = model, window_seconds
        self._lock = threading.Lock()
        self._present: RequestStatistics | None = None

    @property
    def folder(self) -> StorePath:
        return locate_statistics(self._model)

    def add(
        self, model: ServedModel, files: Sequence[bytes], outputs: Mapping[str, np.ndarray]
    ) -> None:
        """Counts the image files of one request."""
        statistics = self._find(model)
        for index, file in enumerate(files):
            row = {name: outputs[name][index] for name in _USED_OUTPUTS if name in outputs}
            statistics.add(file, row)

    def close(self) -> None:
        with self._lock:
            if self._present:
                self._present.close()

    def _find(self, model: ServedModel) -> RequestStatistics:
        with self._lock:
            if self._present is None or self._present.version != model.number:
                if self._present:  # the last requests to the old version may be left out
                    threading.Thread(target=self._present.close, daemon=True).start()
                self._present = RequestStatistics(
                    self._model,
                    model.number,
                    model.class_names,
                    model.to_input,
                    self._window_seconds,
                )
            return self._present
