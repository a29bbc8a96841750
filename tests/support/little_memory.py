"""Reads a file of weights in a process that has hardly any memory left for them.

    python little_memory.py KIND FOLDER

writes and reads weights of a small model, for all imports, and then those of one that takes 128 MB.
It prints the error of the second reading.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BYTES_LEFT = 16 << 20


def build(width: int) -> Any:
    import keras

    inputs = keras.Input((4096,))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(width)(inputs)))


def write(kind: str, model: Any, file: Path) -> None:
    from pipeline_ops.training.weight_files import write_arrays

    match kind:
        case "npz":
            write_arrays(file, model.get_weights())
        case "keras":
            model.save(file)
        case "weights.h5":
            model.save_weights(file)
        case _:
            model.export(file, verbose=False)


def make_reading(kind: str, folder: Path, width: int) -> Callable[[], Any]:
    from pipeline_ops.training.warm_start import read_warm_start

    model, file = build(width), folder / f"w{width}.{kind}"
    write(kind, model, file)
    make_model = functools.partial(build, width)
    return functools.partial(read_warm_start, str(file), model, model.get_weights(), make_model)


def leave_little_memory() -> None:
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    limit = (int(status["VmSize"].split()[0]) << 10) + BYTES_LEFT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(kind: str, folder: Path) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    make_reading(kind, folder, width=8)()
    read = make_reading(kind, folder, width=8192)
    leave_little_memory()
    try:
        read()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
