"""The model as it is served: its contract, its preprocessing, clients, and references.

`prepare` is for clients in Python of a model whose preprocessing is theirs (`served: by_client`).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from pipeline_ops.served.preprocessing import Preprocessing


def prepare(version: Path | str, image_bytes: bytes) -> np.ndarray:
    """Runs the stages of a model's data set on a raw image file, as training did.

    Args:
      version: the folder of a published version, as `trainyard models fetch` copies it.
      image_bytes: a raw file of any format that the stage `decode` takes.

    Returns:
      float32 [T, H, W, C], the input of the signatures `serving_default` and `images`. T is 1,
      unless a stage such as `tile` makes several images of one.

    Raises:
      ConfigError: a stage is not installed, or with other code than the model was trained with.
      DataError: a stage rejects the file.
    """
    return _read_preprocessing(Path(version)).prepare(image_bytes).astype("float32")


@functools.lru_cache(maxsize=8)
def _read_preprocessing(folder: Path) -> Preprocessing:
    from pipeline_ops.served.preprocessing import Preprocessing

    preprocessing = Preprocessing.read(folder)
    preprocessing.check_code()
    return preprocessing
