"""A builder of TensorFlow Datasets, which a user would take instead of Trainyard.

It uses its generator writer, or Beam in one of two modes. All decode, resize and encode as
`by_hand.py` does. `preprocess.py` starts it.

    python tests/bench/tfds_writers.py RAW OUT generator|multi_threading|multi_processing
                                       jpeg|png NUM_IMAGES
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import tensorflow_datasets as tfds
from by_hand import HEIGHT, WIDTH, check, read, resize

RAW, OUT, KIND, ENCODING, NUM_IMAGES = (
    Path(sys.argv[1]),
    sys.argv[2],
    sys.argv[3],
    sys.argv[4],
    int(sys.argv[5]),
)


def make_record(path: str) -> tuple[str, dict]:
    import io

    image = resize(check(read(path.encode())), ENCODING)
    return path, {"image": io.BytesIO(image), "label": Path(path).parent.name}


class Photographs(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        labels = sorted(folder.name for folder in RAW.iterdir())
        image = tfds.features.Image(shape=(HEIGHT, WIDTH, 3), encoding_format=ENCODING)
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"image": image, "label": tfds.features.ClassLabel(names=labels)}
            ),
        )

    def _split_generators(self, dl_manager) -> dict:
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        paths = sorted(map(str, RAW.rglob("*.jpg")))[:NUM_IMAGES]
        if KIND == "generator":
            return map(make_record, paths)
        import apache_beam as beam

        return beam.Create(paths) | beam.Map(make_record)


def main() -> None:
    builder = Photographs(data_dir=OUT)
    options = None
    if KIND != "generator":
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions(
            ["--runner=FnApiRunner", f"--direct_running_mode={KIND}", "--direct_num_workers=2"]
        )
    start = time.monotonic()
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(
            beam_options=options, beam_runner="FnApiRunner" if options else None
        )
    )
    print(
        json.dumps(
            {
                "images": builder.info.splits["train"].num_examples,
                "running_seconds": time.monotonic() - start,
            }
        )
    )


if __name__ == "__main__":
    main()
