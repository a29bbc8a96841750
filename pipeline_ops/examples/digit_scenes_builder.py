"""The TensorFlow Datasets builder of the scenes in `digit_scenes.py`, which Beam draws.

A config names it by its module path.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow_datasets as tfds

from pipeline_ops.examples.digit_scene import NUM_SCENES, SIDE_PIXELS, draw_scene


class DigitScenes(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]  # has no types
    """Digits in scenes, with boxes."""

    VERSION = tfds.core.Version("1.0.0")
    # Nothing is downloaded, so there are no checksums. To look for them, TFDS needs a package that
    # it does not depend on.
    url_infos = None
    code_path = None

    def _info(self) -> tfds.core.DatasetInfo:
        objects = {
            "bbox": tfds.features.BBoxFeature(),
            "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
        }
        features = {
            "image": tfds.features.Image(
                shape=(SIDE_PIXELS, SIDE_PIXELS, 1), encoding_format="png"
            ),
            "objects": tfds.features.Sequence(objects),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            description=DigitScenes.__doc__,
        )

    def _split_generators(self, dl_manager: Any, pipeline: Any) -> dict[str, Any]:
        return {split: self._generate_examples(pipeline, split) for split in NUM_SCENES}

    def _generate_examples(self, pipeline: Any, split: str) -> Any:
        import apache_beam as beam

        numbers = pipeline | f"Number the scenes of {split}" >> beam.Create(
            range(NUM_SCENES[split])
        ).with_output_types(int)
        return numbers | f"Draw the scenes of {split}" >> beam.Map(
            functools.partial(_make_example, split)
        )


def _make_example(split: str, number: int) -> tuple[int, dict[str, Any]]:
    image_HW, boxes = draw_scene(split, number)
    objects = [
        {"bbox": tfds.features.BBox(*(edge / SIDE_PIXELS for edge in box)), "label": label}
        for box, label in boxes
    ]
    return number, {"image": image_HW[..., None], "objects": objects}


def make_download_config() -> tfds.download.DownloadConfig:
    """Selects Beam's own runner by name.

    `DirectRunner` may be another engine, which is fetched from the network.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    return tfds.download.DownloadConfig(
        beam_runner="FnApiRunner", beam_options=PipelineOptions(["--direct_running_mode=in_memory"])
    )
