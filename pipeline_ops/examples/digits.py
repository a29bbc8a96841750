"""Writes scikit-learn's handwritten digits as an image folder.

`python -m pipeline_ops.examples.digits <folder>` writes 1,797 real images (UCI's test set of
optical recognition of handwritten digits). They come with scikit-learn, so no network is needed.
They are 8-bit grey PNG files of 28x28 pixels in one folder per digit,
`<folder>/<digit>/<index>.png`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.storage.local_files import staging_folder
from pipeline_ops.system.locks import exclusive_lock

if TYPE_CHECKING:
    import numpy as np

_SIDE_PIXELS = 28
_WHITE = 16  # the brightest value in the raw 8x8 images


def write_digits(folder: Path) -> bool:
    """Writes all images or none.

    Returns:
      False if they are there already.

    Raises:
      DataError: the folder holds something else.
      MachineError: the disk failed, or another process has been writing there for a minute.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = [f"{label}/{index:05d}.png" for index, label in enumerate(digits.target)]
    with exclusive_lock(
        folder.with_name(f".{folder.name}.lock"), f"the writing of {folder}", wait_seconds=60
    ):
        return _write_once(folder, names, digits.images)


def _write_once(folder: Path, names: list[str], images: Iterable[np.ndarray]) -> bool:
    if folder.exists() and any(folder.iterdir()):
        _check_complete(folder, names)
        return False
    with staging_folder(folder) as staging:
        for name, image in zip(names, images, strict=True):
            _write_png(staging / name, image)
    return True


def _check_complete(folder: Path, names: list[str]) -> None:
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    missing, unexpected = set(names) - found, found - set(names)
    if missing or unexpected:
        raise DataError(
            f"{folder}: holds other files than the digits: "
            f"{len(missing)} files are missing, {len(unexpected)} are unexpected. "
            "Remove the folder, or name another one."
        )


def _write_png(file: Path, image: np.ndarray) -> None:
    """Writes a PNG file. `image` is float [8, 8] of 0 to 16."""
    from PIL import Image

    file.parent.mkdir(exist_ok=True)
    grey = Image.fromarray((image * (255 / _WHITE)).round().astype("uint8"))
    grey.resize((_SIDE_PIXELS, _SIDE_PIXELS), Image.Resampling.BICUBIC).save(file)


def run_writer(write: Callable[[Path], bool], content: str) -> None:
    """Writes example data into the folder on the command line, and prints the result.

    Args:
      write: writes into a folder. Returns False if the data are there already.
      content: the data, for messages.
    """
    parser = argparse.ArgumentParser(description=f"Writes {content} into a folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    try:
        is_new = write(folder)
    except TrainyardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{folder}: {content} {'written' if is_new else 'exist, nothing to do'}")


if __name__ == "__main__":
    run_writer(write_digits, "1,797 images of handwritten digits")
