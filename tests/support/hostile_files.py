"""Valid files of every kind with one hostile field, and a process that reads them within limits.

    python hostile_files.py READER FIRST COUNT

reads the files of COUNT seeds from FIRST on. It prints each seed before its file is read. It ends
with the first error that is not one of the data, and is killed by the first file that takes more
than `SECONDS` of the processor. It has `MEMORY_BYTES` more address space than before the first.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import io
import json
import os
import random
import re
import resource
import signal
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from od_api_files import CENTER_NET, SSD, with_paths
from pydantic import TypeAdapter

from beam_jobs.io.example import _TrainExample
from pipeline_ops.config.sources import AnySource
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.storage.tfrecord import compute_masked_crc, frame_record

SECONDS, MEMORY_BYTES = 10, 3 << 30
NUMBERS = [0, 1, -1, 127, -(2**31), 2**31 - 1, 2**32, 2**40, -(2**40), 2**62, 2**63 - 1]
TEXTS = ["", "\0", "a" * 1001, "é" * 100_000, "9" * 20_000, "-1", "nan", "1e999", "../x", "\ud800"]
Files = dict[str, bytes]
PICTURE: bytes = cv2.imencode(".png", np.zeros((9, 9, 3), np.uint8))[1].tobytes()


def spoil(rng: random.Random, value: Any) -> Any:
    """The value with one hostile part, at any depth."""
    value = copy.copy(value)
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        value[key] = spoil(rng, value[key])
        return value
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    return rng.choice([None, True, [], {}, nested, [value] * 2000, *NUMBERS, *TEXTS])


def make_text_cells(rng: random.Random, cells: list[str], *others: str) -> list[str]:
    """The cells with another one in the place of one."""
    cells = list(cells)
    cells[rng.randrange(len(cells))] = str(rng.choice([*NUMBERS, *TEXTS, "9" * 5000, *others]))
    return cells


def make_tar(rng: random.Random) -> tuple[Files, dict]:
    blocks = []
    hostile = rng.randrange(6)
    for number in range(3):
        label = spoil(rng, {"label": "cat"}) if hostile == number == 1 else {"label": "cat"}
        text = json.dumps(label).encode()
        for suffix, content in (("jpg", PICTURE), ("json", text)):
            header = bytearray(make_info(f"{number}.{suffix}", content).tobuf(tarfile.GNU_FORMAT))
            if hostile == 0 and rng.random() < 0.3:
                spoil_header(rng, header)
            if hostile == 2 and rng.random() < 0.3:
                blocks.append(make_pax(rng))
            blocks.append(bytes(header) + pad(content))
    if hostile == 3:
        blocks.insert(rng.randrange(len(blocks)), make_pax(rng) * rng.choice([1, 50]))
    return {"a.tar": b"".join(blocks) + bytes(1024)}, {
        "type": "webdataset",
        "task": "classification",
        "annotation": "json",
    }


def make_info(name: str, content: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info


def pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def spoil_header(rng: random.Random, header: bytearray) -> None:
    """Puts a hostile value into one field of a header, whose checksum is right again."""
    start, end = rng.choice([(0, 100), (100, 108), (124, 136), (156, 157), (345, 500), (386, 512)])
    if end - start == 1:
        values = [bytes([kind]) for kind in b"\x00012345679xgXLKSDVMN"]
    else:
        values = [b"7" * (end - start), b"\x80" + rng.randbytes(end - start - 1)]
        values += [b"\xff" * (end - start), rng.randbytes(end - start), b"\1" * (end - start)]
    header[start:end] = rng.choice(values)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)


def make_pax(rng: random.Random) -> bytes:
    keys = ["size", "path", "mtime", "hdrcharset", "GNU.sparse.map", "GNU.sparse.size"]
    keys += ["GNU.sparse.realsize", "GNU.sparse.name", "GNU.sparse.numblocks", "comment"]
    records = b"30 GNU.sparse.major=1\n30 GNU.sparse.minor=0\n" if rng.random() < 0.2 else b""
    for _ in range(rng.choice([1, 3, 30])):
        value = str(rng.choice([*NUMBERS, *TEXTS, "0,1," * 999])).encode("utf-8", "replace")
        record = rng.choice(keys).encode() + b"=" + value + b"\n"
        length = rng.choice([len(record) + 1 + len(str(len(record) + 4)), 0, 3, 10**9])
        records += b"%d " % length + record
    header = bytearray(make_info("pax", records).tobuf(tarfile.USTAR_FORMAT))
    header[156:157] = rng.choice([b"x", b"g", b"X", b"L", b"K"])
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + pad(records)


def make_parquet(rng: random.Random) -> tuple[Files, dict]:
    number = rng.choice([1, 20, 300])
    labels = ["cat", "dog"] * number
    columns = {"image": [PICTURE + b"%d" % row * 50 for row in range(2 * number)], "label": labels}
    if rng.random() < 0.2:
        columns["label"] = [rng.choice([None, "a" * 20_000]) for _ in labels]
    file = io.BytesIO()
    pq.write_table(
        pa.table(columns),
        file,
        compression=rng.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=rng.random() < 0.5,
        row_group_size=rng.choice([7, 1000]),
        data_page_version=rng.choice(["1.0", "2.0"]),
    )
    content = file.getvalue()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    if rng.random() < 0.7:
        footer = spoil_thrift(rng, content[start:-8], is_as_long=False)
        content = content[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    else:
        chunk = pq.read_metadata(io.BytesIO(content)).row_group(0).column(rng.randrange(2))
        page = chunk.data_page_offset
        content = content[:page] + spoil_thrift(rng, content[page:], is_as_long=True)
    return {"a.parquet": content}, {"type": "parquet", "task": "classification"}


def spoil_thrift(rng: random.Random, content: bytes, is_as_long: bool) -> bytes:
    """A struct in Thrift's compact protocol with another number in the place of one."""
    start, end = rng.choice(ThriftNumbers(content).places)
    number = rng.choice(NUMBERS)
    zigzag = (number << 1) ^ (number >> 63)
    if is_as_long:
        zigzag %= 1 << (7 * (end - start))
    digits = [zigzag >> shift & 0x7F for shift in range(0, max(7, zigzag.bit_length()), 7)]
    digits += [0] * (end - start - len(digits))
    varint = bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])
    return content[:start] + varint + content[end:]


class ThriftNumbers:
    """The places of the numbers of a struct, as (start, end)."""

    def __init__(self, content: bytes):
        self._content, self._at, self.places = content, 0, list[tuple[int, int]]()
        self._read_struct()

    def _read_struct(self) -> None:
        while head := self._read_byte():
            if not head >> 4:  # the number of the field follows
                self._read_varint()
            if (kind := head & 15) > 2:  # 1 and 2 are true and false
                self._read_value(kind)

    def _read_value(self, kind: int) -> None:
        if kind in (4, 5, 6):
            start = self._at
            self._read_varint()
            self.places.append((start, self._at))
        elif kind == 8:
            size = self._read_varint()
            self._at += size
        elif kind in (9, 10):
            head = self._read_byte()
            size = head >> 4 if head >> 4 < 15 else self._read_varint()
            for _ in range(size):
                self._read_value(head & 15)
        elif kind == 12:
            self._read_struct()
        else:
            self._at += {3: 1, 7: 8}.get(kind, 1)

    def _read_byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _read_varint(self) -> int:
        value = shift = 0
        while (byte := self._read_byte()) & 0x80:
            value, shift = value | (byte & 0x7F) << shift, shift + 7
        return value | byte << shift


def make_npz(rng: random.Random) -> tuple[Files, dict]:
    images = make_array(rng, np.zeros((3, 4, 4), np.uint8))
    labels = make_array(rng, np.array(["cat", "dog", "a" * rng.choice([1, 2000])]))
    return {"a.npz": make_zip(rng, {"x.npy": images, "y.npy": labels})}, {"type": "npz"}


def make_array(rng: random.Random, array: np.ndarray) -> bytes:
    """An .npy file, some with a hostile header."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    if rng.random() < 0.4:
        shapes = [(number, *array.shape[1:]) for number in NUMBERS] + [(), (0,), (2**20,) * 3]
        kinds = ["|O", "<f8", "|V9", "<U99999999", "<c16", "|S0", "<M8[D]"]
        key, values = rng.choice(
            [("shape", shapes), ("descr", kinds), ("fortran_order", [True, 7])]
        )
        header[key] = rng.choice(values)
    text = repr(header).encode()
    if rng.random() < 0.05:
        text = rng.choice([b"(" * 5000, b"9" * 9000, b"{" + b"'a':1," * 1000 + b"}", b"\xff"])
    file.write(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    return file.getvalue() + array.tobytes()


def make_zip(rng: random.Random, members: Files) -> bytes:
    """An archive, some with a hostile field in its directory."""
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    ) as zipped:
        for name, member in members.items():
            zipped.writestr(name, member)
    content = bytearray(file.getvalue())
    if rng.random() < 0.5:
        start = content.find(rng.choice([b"PK\1\2", b"PK\3\4", b"PK\5\6"])) + rng.randrange(4, 46)
        size = rng.choice([2, 4])
        content[start : start + size] = (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(
            size, "little"
        )
    return bytes(content)


OBJECT = "image/object/"
API_EXAMPLE: dict[str, list] = {
    **{"image/height": [9], "image/width": [9], "image/filename": [b"1.jpg"]},
    **{"image/encoded": [PICTURE], "image/class/label": [1], "image/class/text": [b"cat"]},
    **{f"{OBJECT}bbox/{edge}": [0.0, 0.25] for edge in ("ymin", "xmin")},
    **{f"{OBJECT}bbox/{edge}": [0.5, 0.75] for edge in ("ymax", "xmax")},
    **{f"{OBJECT}class/label": [1, 7], f"{OBJECT}class/text": [b"cat", b"dog"]},
    **{f"{OBJECT}is_crowd": [0, 1], f"{OBJECT}difficult": [0, 1]},
}
LABEL_MAP = ["item { id: ", "1", " name: '", "cat", "' } item { id: ", "7", " name: 'dog'"]
LABEL_MAP += [" display_name: '", "dog", "' keypoints { id: ", "2", " label: '", "x", "' } }"]
BRACKETS = ["a { " * 5000, "a: [" * 5000, "a < " * 5000, "[" * 5000, "'", '"\\', "#", "\\xff' 'a"]

HOSTILE_PATHS = [
    '"/dev/zero" ',
    '"/dev/null" ',
    '"/" ',
    '"a@99999999999999" ',
    '"a@1" ',
    '"\\000" ',
]
HOSTILE_PATHS += [
    f'"{"*?" * 3000}" ',
    f'"{"a/" * 3000}" ',
    '"[" ',
    '"\\377" ',
    '"~x/y" ',
    '"s3://b/c" ',
]


def make_tfrecord(rng: random.Random) -> tuple[Files, dict]:
    """Records of the Object Detection API, with a label map for some."""
    task, has_map = rng.choice(["classification", "detection"]), rng.random() < 0.6
    features = dict(API_EXAMPLE)
    if has_map and rng.random() < 0.5:
        del features["image/class/text"], features[f"{OBJECT}class/text"]
    source = {"type": "tfrecord", "task": task, "parts": [{"files": "a.tfrecord"}]}
    files = {"a.tfrecord": make_records(rng, features)}
    if has_map:
        source["label_map"] = "labels.pbtxt"
        files["labels.pbtxt"] = make_label_map(rng)
    return files, source


def make_label_map(rng: random.Random) -> bytes:
    cells = make_text_cells(rng, LABEL_MAP, *BRACKETS) if rng.random() < 0.5 else LABEL_MAP
    return "".join(cells).encode("utf-8", rng.choice(["replace", "surrogatepass"]))


def make_records(rng: random.Random, features: dict[str, list]) -> bytes:
    """A TFRecord file of nine examples, of which one is hostile."""
    records = []
    for number in range(9):
        own = {name: [b"%d.jpg" % number] for name in features if name.endswith("/filename")}
        own = features | own
        own = spoil_features(rng, own) if number == 1 and rng.random() < 0.6 else own
        data = pack_features(own)
        if number == 1 and rng.random() < 0.3:
            data = spoil_message(rng, data)
        records += [*frame_record(data)]
    if rng.random() < 0.2:
        length = (rng.choice(NUMBERS) % (1 << 64)).to_bytes(8, "little")
        records.insert(rng.randrange(len(records)), length + compute_masked_crc(length))
    content = b"".join(records)
    return gzip.compress(content) if rng.random() < 0.1 else content


def pack_features(features: dict[str, list]) -> bytes:
    """A tf.train.Example. Values that are neither bytes nor floats are integers."""
    example = _TrainExample()
    for name, values in features.items():
        kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        kind = kinds[type(values[0])] if values else "bytes_list"
        getattr(example.features.feature[name], kind).value.extend(values)
    data: bytes = example.SerializeToString()
    return data


def spoil_features(rng: random.Random, features: dict[str, list]) -> dict[str, list]:
    """The features with another list in the place of one, or all with thousands of values."""
    if rng.random() < 0.1:
        return {name: values * 2000 for name, values in features.items()}
    name = rng.choice([*features])
    value = rng.choice(
        [
            *[text.encode("utf-8", "surrogatepass") for text in TEXTS],
            *[float("nan"), float("inf"), -1e38, 1e-45, 0.5, b"\xff\xfe", *NUMBERS],
        ]
    )
    number = len(features[name])
    values = rng.choice([[], features[name] * 2000, [value], [value] * number])
    return {**features, name: values}


def spoil_message(rng: random.Random, data: bytes) -> bytes:
    """The message of protobuf with a hostile byte, number or group at any place."""
    start = rng.randrange(len(data))
    varint = b"\xff" * rng.choice([1, 4, 9, 20]) + b"\1"
    other = rng.choice([rng.randbytes(1), b"", varint, b"\x0b" * 5000, b"\x0a\x00" * 5000])
    return data[:start] + other + data[start + rng.choice([0, 1, len(data)]) :]


FEATURE = "tensorflow_datasets.core.features."
INFO = {
    **{"fileFormat": "tfrecord", "moduleName": "pets.pets", "name": "pets", "version": "1.0.0"},
    "splits": [
        {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            **{"name": "train", "numBytes": "99", "shardLengths": ["3"]},
        }
    ],
}
BOX = {"boundingBox": {"bboxFormat": "REL_YXYX", "dtype": "float32"}}
BOX["boundingBox"]["shape"] = {"dimensions": ["4"]}  # type: ignore[assignment]


def describe_feature(name: str, **values: Any) -> dict[str, Any]:
    return {"pythonClassName": FEATURE + name, **values}


def describe_features(**features: Any) -> dict[str, Any]:
    return describe_feature("features_dict.FeaturesDict", featuresDict={"features": features})


IMAGE_SHAPE = {"dtype": "uint8", "encodingFormat": "png"}
IMAGE = describe_feature("image_feature.Image", image=IMAGE_SHAPE)
IMAGE["image"]["shape"] = {"dimensions": ["-1", "-1", "3"]}
CLASS = describe_feature("class_label_feature.ClassLabel", classLabel={"numClasses": "2"})
OBJECTS = describe_features(
    bbox=describe_feature("bounding_boxes.BBoxFeature", **BOX),
    label=CLASS,
    is_crowd=describe_feature("tensor_feature.Tensor", tensor={"shape": {}, "dtype": "bool"}),
)
SEQUENCE = describe_feature(
    "sequence_feature.Sequence", sequence={"feature": OBJECTS, "length": "-1"}
)


def make_tfds(rng: random.Random) -> tuple[Files, dict]:
    """A prepared data set of TensorFlow Datasets, some without the names of their classes."""
    if is_detection := rng.random() < 0.5:
        description = describe_features(image=IMAGE, objects=SEQUENCE)
        features = {"objects/label": [0, 1], "objects/bbox": [0.0, 0.25, 0.5, 0.75] * 2}
        features["objects/is_crowd"] = [0, 1]
    else:
        description = describe_features(image=IMAGE, label=CLASS)
        features = {"label": [1]}
    names = "\n".join(
        make_text_cells(rng, ["cat", "dog"]) if rng.random() < 0.2 else ["cat", "dog"]
    )
    hostile = rng.randrange(3)
    info = spoil(rng, INFO) if hostile == 0 else INFO
    description = spoil(rng, description) if hostile == 1 else description
    features = {"image": [PICTURE], **features}
    records = make_records(rng, features) if hostile == 2 else frame_example(features)
    files = {
        "dataset_info.json": json.dumps(info).encode(),
        "features.json": json.dumps(description).encode(),
        "pets-train.tfrecord-00000-of-00001": records,
    }
    if rng.random() < 0.5:
        labels = "objects-label.labels.txt" if is_detection else "label.labels.txt"
        files[labels] = names.encode("utf-8", "replace")
    source = {"type": "tfds", "builder": "pets", "parts": [{"name": "train"}]}
    return {f"pets/1.0.0/{name}": content for name, content in files.items()}, source


def frame_example(features: dict[str, list]) -> bytes:
    return b"".join(frame_record(pack_features(features))) * 3


COCO = {
    "images": [{"id": 1, "file_name": "1.jpg", "width": 9, "height": 9}],
    "categories": [{"id": 1, "name": "cat"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "iscrowd": 0}],
}
SHAPE = {"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle", "group_id": 1}
LABELME = {"imagePath": "1.jpg", "imageHeight": 9, "imageWidth": 9, "shapes": [SHAPE]}
RESULT = {
    "type": "rectanglelabels",
    "value": {"x": 1, "y": 2, "width": 3, "height": 4, "rotation": 7, "rectanglelabels": ["cat"]},
    "original_width": 9,
    "original_height": 9,
}
TASK = {"data": {"image": "/data/upload/1.jpg"}, "annotations": [{"result": [RESULT]}]}
RECTANGLE = {"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}
REGION = {"shape_attributes": RECTANGLE, "region_attributes": {"class": "cat"}}
LINE = {"path": "1.jpg", "boxes": [{"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4, "label": "cat"}]}
DATA = {"train": ".", "names": ["cat"], "nc": 1}


def make_json(name: str, valid: Any, rng: random.Random, **source: Any) -> tuple[Files, dict]:
    content = json.dumps(spoil(rng, valid)).encode()
    return {"1.jpg": PICTURE, "1.txt": b"0 .5 .5 .1 .1", name: content}, source


def make_lines(
    name: str, cells: list[str], divider: str, rng: random.Random, **source: Any
) -> tuple[Files, dict]:
    text = divider.join(make_text_cells(rng, cells))
    return {"1.jpg": PICTURE, name: text.encode("utf-8", "replace")}, source


CSV = ["path", "xmin", "ymin", "xmax", "ymax", "label\n1.jpg", "1", "2", "3", "4", "cat"]
VOC = ["<annotation><size><width>", "9", "</width><height>", "9", "</height></size>"]
VOC += ["<object><name>", "cat", "</name><bndbox><xmin>", "1", "</xmin><ymin>", "2", "</ymin>"]
VOC += ["<xmax>", "3", "</xmax><ymax>", "4", "</ymax></bndbox></object></annotation>"]
CVAT = ["<annotations><image name='1.jpg' width='", "9", "' height='", "9", "'><box label='", "cat"]
CVAT += ["' xtl='", "1", "' ytl='", "2", "' xbr='", "3", "' ybr='", "4", "' rotation='", "5"]
CVAT += ["'/></image></annotations>"]
DETECTION = {"task": "detection"}
SOURCES: dict[str, Callable[[random.Random], tuple[Files, dict]]] = {
    "webdataset": make_tar,
    "parquet": make_parquet,
    "npz": make_npz,
    "tfrecord": make_tfrecord,
    "tfds": make_tfds,
    "coco": functools.partial(
        make_json, "a.json", COCO, type="coco", parts=[{"annotations": "a.json"}]
    ),
    "labelme": functools.partial(make_json, "1.json", LABELME, type="labelme"),
    "label_studio": functools.partial(
        make_json, "a.json", [TASK], type="label_studio", export="a.json", **DETECTION
    ),
    "via": functools.partial(
        make_json,
        "a.json",
        {"1": {"filename": "1.jpg", "regions": [REGION]}},
        type="via",
        parts=[{"manifest": "a.json"}],
    ),
    "jsonl": functools.partial(
        make_json, "m.jsonl", LINE, type="jsonl", manifest="m.jsonl", **DETECTION
    ),
    "csv": functools.partial(
        make_lines, "m.csv", CSV, ",", type="csv", manifest="m.csv", **DETECTION
    ),
    "yolo": functools.partial(make_json, "data.yaml", DATA, type="yolo"),
    "voc": functools.partial(make_lines, "1.xml", VOC, "", type="voc"),
    "cvat": functools.partial(
        make_lines, "a.xml", CVAT, "", type="cvat", annotations="a.xml", images=".", **DETECTION
    ),
}


def write_files(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read_source(reader: str, rng: random.Random, folder: Path) -> None:
    """Reads a source as a job does, and writes the first config for it as `trainyard init` does."""
    from beam_jobs.sources import read_records
    from pipeline_ops.raw_data.local import list_raw_files
    from pipeline_ops.storage.open_store import open_root

    (raw := folder / "raw").mkdir()
    files, source = SOURCES[reader](rng)
    write_files(raw, files)
    config = TypeAdapter(AnySource).validate_python({"path": str(raw), **source})
    with contextlib.suppress(DataError):
        read_records(config, list_raw_files(Path(config.folder), open_root(folder) / "listings"))
    write_first_config(raw, folder / "first.yaml")


def write_first_config(raw: Path, output: Path) -> None:
    from pipeline_ops.cli.commands.init import init

    with hidden_output(), contextlib.suppress(DataError, ConfigError):
        init(raw, output, no_measure=True)


def hidden_output() -> contextlib.AbstractContextManager:
    """Takes what a command prints, and fails for what UTF-8 does not have."""
    return contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def spoil_config(rng: random.Random, cells: list[str]) -> None:
    """Replaces any part of a config, or a number or text in it, so that its syntax stays right."""
    values = [number for number, cell in enumerate(cells) if re.match(r"[\d\"'.-]", cell)]
    if rng.random() < 0.3:
        cells[:] = make_text_cells(rng, cells, *BRACKETS, *HOSTILE_PATHS, "a: 1\n" * 2000)
        return
    place = rng.choice(values)
    texts = [f'"{text}"' for text in TEXTS]
    numbers = [*NUMBERS, "nan", "inf", "-inf", "1e999", "1e-999", "1e300", "-0.0", "9" * 5000]
    others = [numbers, [*texts, *HOSTILE_PATHS], ["a { } " * 2000, "[" + "1, " * 2000 + "1]"]]
    is_text = cells[place][0] in "'\""
    chosen = others[1 if is_text else 0] if rng.random() < 0.8 else others[2]
    cells[place] = str(rng.choice(chosen))


def import_config(rng: random.Random, folder: Path) -> None:
    """Imports a config of the Object Detection API, as `trainyard import-od-api` does."""
    from pipeline_ops.cli.commands.import_od_api import import_od_api

    cells = re.sub("#.*", "", rng.choice([SSD, CENTER_NET])).split()
    hostile = rng.randrange(6)
    if hostile > 1:
        spoil_config(rng, cells)
    records = make_records(rng, API_EXAMPLE) if hostile == 0 else frame_example(API_EXAMPLE)
    label_map = make_label_map(rng) if hostile == 1 else "".join(LABEL_MAP).encode()
    text = with_paths(" ".join(cells), folder, "train.record")
    config = folder / "pipeline.config"
    config.write_bytes(text.encode("utf-8", rng.choice(["replace", "surrogatepass"])))
    write_files(
        folder, {"train.record": records, "eval.record": records, "labels.pbtxt": label_map}
    )
    with hidden_output(), contextlib.suppress(DataError, ConfigError):
        import_od_api(config, folder / "a.yaml")


@functools.cache
def make_model() -> Any:
    from pipeline_ops.models.dense import build

    return build((4, 4, 1), 3, 4)


def read_weights(rng: random.Random, folder: Path) -> None:
    from pipeline_ops.training.warm_start import read_warm_start
    from pipeline_ops.training.weight_files import write_arrays

    model, suffix = make_model(), rng.choice(["npz", "weights.h5", "h5", "keras"])
    file = folder / f"model.{suffix}"
    if suffix == "npz":
        write_arrays(file, model.get_weights())
        with zipfile.ZipFile(file) as stored:
            members = {name: stored.read(name) for name in stored.namelist()}
        name = rng.choice([*members])
        members[name] = make_array(rng, np.zeros((4, 3), np.float32))
        file.write_bytes(make_zip(rng, members))
    else:
        model.save_weights(folder / "whole.weights.h5")
        spoil_hdf5(rng, folder / "whole.weights.h5")
        content = (folder / "whole.weights.h5").read_bytes()
        is_packed = suffix == "keras"
        file.write_bytes(make_zip(rng, {"model.weights.h5": content}) if is_packed else content)
    with contextlib.suppress(DataError, ConfigError):
        read_warm_start(str(file), model, model.get_weights(), make_model)


def spoil_hdf5(rng: random.Random, file: Path) -> None:
    """Replaces one array of a file by a hostile one."""
    with h5py.File(file, "r+") as stored:
        names = list[str]()
        stored.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        name = rng.choice(names)
        del stored[name]
        shape = rng.choice([(), (0,), (2**40,), (2**20, 2**20), (16, 4), (2**26,)])
        kind = rng.choice([np.float32, np.float64, "S100", h5py.string_dtype(), np.int8])
        match rng.randrange(4):
            case 0:
                stored[name] = h5py.ExternalLink("/etc/passwd", "x")
            case 1:
                stored[name] = h5py.SoftLink("/")
            case 2:
                stored.create_group(name)
            case _:
                stored.create_dataset(
                    name,
                    shape,
                    kind,
                    chunks=tuple(1 for _ in shape) if 0 not in shape and shape else None,
                )


def read_seed(reader: str, seed: int) -> None:
    rng = random.Random(f"{reader} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        if reader in SOURCES:
            read_source(reader, rng, Path(folder))
        else:
            OTHERS[reader](rng, Path(folder))


OTHERS = {"weights": read_weights, "od_api": import_config}


def main(reader: str, first: int, count: int) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with contextlib.suppress(Exception):
        read_seed(reader, first)  # imports what the reader needs
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    limit = (int(status["VmSize"].split()[0]) << 10) + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for seed in range(first, first + count):
        print(seed, flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        read_seed(reader, seed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
