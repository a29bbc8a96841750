"""The interface of a served model: its signatures, outputs and limits.

A SavedModel of ours has these signatures:

| signature | input | output |
|---|---|---|
| `serving_default` | `image_bytes`, string [N]: raw image files, JPEG or PNG | answers |
| `examples` | `examples`, string [N]: tf.train.Example with `image/encoded` | answers |
| `decode` | `image_bytes`, string [N]: raw image files | `images`, `windows` |
| `images` | `images`, float32 [N, H, W, C] in 0..255: pixels after all stages | answers |

Raw files go through all stages of preprocessing that are served in the graph. If the config leaves
a stage to the client (`served: by_client`), `serving_default` takes no files: it is `images` under
another name, with the input `prepared_images`, and `examples` and `decode` are absent. The asset
`preprocessing.json` lists the stages, and `pipeline_ops.served.prepare` runs them in Python.

A classifier answers `probabilities`, float32 [N, classes], and `classes`, int64 [N]. The asset
`class_names.txt` has one class in a line.

A detector answers `boxes`, float32 [N, 100, 4]: ymin, xmin, ymax, xmax as fractions of the image,
turned upright as EXIF says, `scores`, float32 [N, 100], the best first, `classes`, int64 [N, 100]:
indexes into the class names, and `num_detections`, int32 [N]. Values after the first
`num_detections` are 0. `detection_api` takes `input_tensor`, uint8 [N, height, width, 3], decoded
and upright, and has the outputs of the Object Detection API. Its classes are numbers of the asset
`label_map.pbtxt`: those of the label map of the data, or from 1 on without one. A detector whose
head uses only operations of TFLite and ONNX has the signature `portable` for these formats, with
the interface of `images`.
"""

from __future__ import annotations

SERVING_DEFAULT, EXAMPLES, DECODE = "serving_default", "examples", "decode"
IMAGES, PORTABLE = "images", "portable"
DETECTION_API = "detection_api"
IMAGE_BYTES, PREPARED_IMAGES = "image_bytes", "prepared_images"
"""The inputs of `serving_default`: raw files, or pixels if the client prepares them."""

CLASSIFIER_OUTPUTS = ("probabilities", "classes")
DETECTOR_OUTPUTS = ("boxes", "scores", "classes", "num_detections")

PREPROCESSING = "preprocessing.json"
"""The asset with the stages: {"stages": [...]}, as in the figures of the data set."""
LABEL_MAP = "label_map.pbtxt"

MAX_IMAGE_PIXELS = 64_000_000
"""Limit of pixels of one image. The model shrinks images, so a smaller one serves as well."""
MAX_REQUEST_PIXELS = 1_000_000_000
"""Limit of pixels of all images of a request together, which bounds the time of a request."""
MAX_PARALLEL_PIXELS = 64_000_000
"""Limit of pixels in parallel. Images of larger requests are decoded one by one to save memory."""
MAX_JPEG_SCANS = 64
"""Limit of scans of a JPEG. Each is a pass over all pixels. Encoders write a dozen at most."""
MAX_PNG_TEXTS = 16
"""Limit of compressed texts in a PNG. Each can take 8 MB of memory without being visible."""
