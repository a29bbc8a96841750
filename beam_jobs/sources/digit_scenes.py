"""Scenes with known ground truth: scikit-learn's real digits, pasted at several scales.

`python -m beam_jobs.sources.digit_scenes <data_dir>` prepares them below TensorFlow Datasets'
`data_dir`, without any network. The builder is in `digit_scenes_builder.py`. A scene is a grey
image of 128x128 pixels with one to six digits, 12 to 40 pixels high, on a ramp with noise. It
depends only on its split and its number. Training scenes show four fifths of the 1,797 digits.
Validation and test scenes show a tenth each, so no test scene shows a digit that was used in
training or in the choice of an epoch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline_ops.errors import MachineError, TrainyardError


def prepare(data_dir: Path) -> bool:
    """Prepares the data set with Beam. Returns False if it is there already.

    Raises MachineError: the disk failed.
    """
    from beam_jobs.sources.digit_scenes_builder import DigitScenes, beam_on_this_host

    builder = DigitScenes(data_dir=str(data_dir))
    if builder.is_prepared():
        return False
    try:
        builder.download_and_prepare(file_format="tfrecord", download_config=beam_on_this_host())
    except OSError as error:
        raise MachineError(f"{data_dir}: the scenes could not be written: {error}") from error
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Prepares scenes of scikit-learn's digits for TensorFlow Datasets."
    )
    parser.add_argument("data_dir", type=Path)
    data_dir = parser.parse_args(arguments).data_dir.resolve()
    try:
        is_new = prepare(data_dir)
    except TrainyardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(
        f"{data_dir}: "
        f"{'3,500 scenes written' if is_new else 'the scenes are there already, nothing to do'}"
    )


if __name__ == "__main__":
    main()
