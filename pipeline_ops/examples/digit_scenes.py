"""Scenes with known ground truth: scikit-learn's real digits, pasted at several scales.

`python -m pipeline_ops.examples.digit_scenes <data_dir>` prepares them below TensorFlow Datasets'
`data_dir`, without any network. The builder is in `digit_scenes_builder.py`. A scene is a grey
image of 128x128 pixels with one to six digits, 12 to 40 pixels high, on a ramp with noise. It
depends only on its split and its number. Training scenes show four fifths of the 1,797 digits.
Validation and test scenes show a tenth each, so no test scene shows a digit that was used in
training or in the choice of an epoch.
"""

from __future__ import annotations

from pathlib import Path

from pipeline_ops.errors import MachineError
from pipeline_ops.examples.digits import run_writer


def prepare(data_dir: Path) -> bool:
    """Prepares the data set with Beam. Returns False if it is there already.

    Raises MachineError: the disk failed.
    """
    from pipeline_ops.examples.digit_scenes_builder import DigitScenes, make_download_config

    builder = DigitScenes(data_dir=str(data_dir))
    if builder.is_prepared():
        return False
    try:
        builder.download_and_prepare(file_format="tfrecord", download_config=make_download_config())
    except OSError as error:
        raise MachineError(
            f"cannot write the scenes into {data_dir}: {error}. Repair the disk, then retry."
        ) from error
    return True


if __name__ == "__main__":
    run_writer(prepare, "3,500 scenes of digits")
