"""Arrays of NumPy, as Keras, medMNIST, Kaggle and the tutorials of TensorFlow have them."""

from __future__ import annotations

import io
import random
import zipfile
from collections import Counter

import cv2
import numpy as np
import pytest

import beam_jobs.io.arrays as arrays
import beam_jobs.sources.npz as npz
from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.sources.folder_view import SourceMatch, view_folder
from beam_jobs.sources.npz import recognise
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.raw_data.limits import TooLarge

RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, np.uint8)


def save_npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def save_npz(*arrays: np.ndarray, packed: bool = False, **named: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, *arrays, **named)
    return file.getvalue()


@pytest.fixture
def read(raw):
    def read(files: dict[str, bytes], **source):
        for name, content in files.items():
            raw.add(name, content)
        return raw.read(**{"type": "npz", **source})

    return read


def decode(raw, record) -> np.ndarray:
    """The pixels of a record's PNG, [H, W, C]."""
    pixels = cv2.imdecode(np.frombuffer(read_raw(record.file, raw.folder), np.uint8), -1)
    return pixels[..., np.newaxis] if pixels.ndim == 2 else pixels[..., ::-1]


def check_images(raw, records, place: str, images: np.ndarray, labels) -> None:
    """The rows of an array are records with these pixels and labels."""
    images = images if images.ndim == 4 else images[..., np.newaxis]
    found = {key: record for key, record in records.items() if key.startswith(place)}
    assert list(found) == [f"{place}{row:06d}" for row in range(len(images))]
    assert [record.label for record in found.values()] == list(map(str, labels))
    for record, pixels in zip(found.values(), images, strict=True):
        np.testing.assert_array_equal(decode(raw, record), pixels)


# The data sets of tutorials


@pytest.mark.parametrize("packed", [False, True])
def test_keras_mnist(raw, read, packed):
    x_train, x_test, y = draw(30, 28, 28), draw(10, 28, 28), np.arange(30, dtype=np.uint8) % 10
    content = save_npz(x_train=x_train, y_train=y, x_test=x_test, y_test=y[:10], packed=packed)
    records, rejected = read({"mnist.npz": content})
    assert not rejected
    assert Counter(record.split for record in records.values()) == {"train": 30, "test": 10}
    check_images(raw, records, "mnist.npz#x_train-", x_train, y)
    check_images(raw, records, "mnist.npz#x_test-", x_test, y[:10])


def test_cifar_with_a_column_of_labels_and_names_of_classes(raw, read):
    x, y = draw(12, 32, 32, 3), np.arange(12)[:, np.newaxis] % 3
    files = {"cifar10.npz": save_npz(x_train=x, y_train=y)}
    names = ["plane", "car", "bird"]
    records, _ = read(files, class_names=names)
    check_images(raw, records, "cifar10.npz#x_train-", x, names * 4)


def test_medmnist(raw, read):
    named = {}
    for split, size in {"train": 9, "val": 4, "test": 5}.items():
        named[f"{split}_images"] = draw(size, 28, 28, 3)
        named[f"{split}_labels"] = np.arange(size, dtype=np.uint8)[:, np.newaxis] % 2
    records, rejected = read({"bloodmnist.npz": save_npz(**named, packed=True)})
    splits = Counter(record.split for record in records.values())
    assert (splits, rejected) == ({"train": 9, "validation": 4, "test": 5}, {})
    check_images(raw, records, "bloodmnist.npz#val_images-", named["val_images"], [0, 1, 0, 1])


def test_kuzushiji_with_one_array_in_each_file(raw, read):
    x, y = draw(6, 28, 28), np.arange(6, dtype=np.uint8)
    names = ("train-imgs", "train-labels", "test-imgs", "test-labels")
    files = {
        f"kmnist-{name}.npz": save_npz(array)
        for name, array in zip(names, (x, y, x[:3], y[:3]), strict=True)
    }
    records, _ = read(files)
    assert Counter(record.split for record in records.values()) == {"train": 6, "test": 3}
    check_images(raw, records, "kmnist-train-imgs.npz#", x, y)


def test_sign_language_digits_with_fractions_and_one_hot_labels(raw, read):
    x, y = draw(8, 64, 64), np.arange(8) % 4
    files = {"X.npy": save_npy(x / 255), "Y.npy": save_npy(np.eye(4)[y])}
    records, rejected = read(files)
    assert not rejected
    check_images(raw, records, "X.npy#", x, y)


def test_arrays_without_names_and_a_folder_of_shards(raw, read):
    x, y = draw(6, 5, 4), np.array(["cat", "dog", "Hündchen"] * 2)
    files = {f"shards/{n}.npz": save_npz(x[n::2], y[n::2]) for n in range(2)}
    with pytest.raises(DataError, match=r"0\.npz: there is no array of images and labels, found "):
        read(files)
    part = {"files": "shards/*.npz", "images": "arr_0", "labels": "arr_1"}
    records, _ = read(files, parts=[part])
    check_images(raw, records, "shards/1.npz#arr_0-", x[1::2], y[1::2])
    assert {record.split for record in records.values()} == {None}
    records, _ = read(files, parts=[part | {"split": "train"}])
    assert {record.split for record in records.values()} == {"train"}


def test_folders_of_splits(raw, read):
    x, y = draw(4, 5, 5), np.arange(4)
    files = {
        f"{split}/{name}.npy": save_npy(array)
        for split in ("train", "val")
        for name, array in (("images", x), ("labels", y))
    }
    records, _ = read(files)
    assert Counter(record.split for record in records.values()) == {"train": 4, "validation": 4}


def test_two_parts_take_their_arrays_from_one_file(raw, read):
    x, y = draw(4, 5, 5), np.arange(4)
    files = {"a.npz": save_npz(a=x, b=y, c=x[:2], d=y[:2])}
    parts = [
        {"files": "a.npz", "images": "a", "labels": "b", "split": "train"},
        {"files": "a.npz", "images": "c", "labels": "d", "split": "test"},
    ]
    records, _ = read(files, parts=parts)
    assert Counter(record.split for record in records.values()) == {"train": 4, "test": 2}
    with pytest.raises(DataError, match=r"a\.npz#a: these images belong to two parts"):
        read(files, parts=[parts[0], parts[0]])


# Values


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f8", "<i8", "|i1", ">u2"])
def test_numbers_of_any_type_become_their_pixels(raw, read, kind):
    x = (draw(6, 7, 5) // (2 if kind == "|i1" else 1)).astype(kind)
    records, _ = read({"d.npz": save_npz(x=x, y=np.arange(6))})
    check_images(raw, records, "d.npz#x-", x.astype(np.uint8), range(6))
    digests = [record.file.digest for record in records.values()]
    if x.dtype.kind == "f":
        records, _ = read({"d.npz": save_npz(x=x / x.dtype.type(255), y=np.arange(6))})
        assert [record.file.digest for record in records.values()] == digests


@pytest.mark.parametrize(
    ("low", "high", "step", "text"),
    [
        (0, 1, 1, "values are 0 to 1, which may be of the range 0 to 1 or of 0 to 255. Save the"),
        (-1, 1, 0.5, "values are -1 to 1, which is neither the range 0 to 1 nor 0 to 255. Save"),
        (0, 16, 1, "values are 0 to 16, which is neither"),
        (0, 1.5, 0.25, "values are 0 to 1.5, which is neither"),
        (0, 65535, 1, "values are 0 to 65535, which is neither"),
    ],
)
def test_a_range_that_is_not_clear_is_refused(read, low, high, step, text):
    x = np.resize(np.arange(low, high + step, step, dtype=np.float32), (3, 200, 200))
    x[0, 0, :2] = low, high
    with pytest.raises(DataError, match=rf"d\.npz#x: its {text}"):
        read({"d.npz": save_npz(x=x, y=np.arange(3))})


def test_an_image_that_is_not_finite_is_rejected_alone(read):
    x = draw(3, 4, 4) / 255
    x[1, 2, 2], x[2, 0, 0] = np.nan, np.inf
    records, rejected = read({"d.npz": save_npz(x=x, y=np.arange(3))})
    assert list(records) == ["d.npz#x-000000"]
    assert [reason for reason, _ in rejected.values()] == ["corrupt", "corrupt"]


def test_labels_that_name_no_class_are_rejected_alone(read):
    x, y = draw(4, 4, 4), np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [0.5, 0.5, 0]])
    _, rejected = read({"d.npz": save_npz(x=x, y=y)})
    assert {reason for reason, _ in rejected.values()} == {"no_label"}
    assert len(rejected) == 3
    _, rejected = read({"d.npz": save_npz(x=x, y=np.array([0, 1, 2, -1]))}, class_names=["a", "b"])
    assert [reason for reason, _ in rejected.values()] == ["unknown_class", "no_label"]
    records, _ = read({"d.npz": save_npz(x=x, y=np.array([b"cat", b"dog"] * 2))})
    assert [record.label for record in records.values()] == ["cat", "dog"] * 2


X, Y = np.zeros((3, 4, 4), np.uint8), np.arange(3)


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X[:, :, 0], Y, r"#x: its shape \(3, 4\) is not that of images. Save them as \[N, H, W\]"),
        (np.zeros((3, 3, 8, 8), np.uint8), Y, r"Save numpy.moveaxis\(images, 1, -1\), which has"),
        (np.zeros((3, 8, 8, 4), np.uint8), Y, "is not that of images"),
        (X.astype(str), Y, "#x: images are numbers, got <U"),
        (X.astype(object), Y, "#x: of Python objects, which only pickle can read. Save it as"),
        (np.asfortranarray(X), Y, r"in Fortran's order. Save numpy.ascontiguousarray\(array\)"),
        (np.zeros((0, 4, 4), np.uint8), Y, r"of the shape \(0, 4, 4\), which has no rows"),
        (X, Y[:2], r"#y: 2 labels are for 3 images in d\.npz#x"),
        (X, Y / 2, r"#y: labels are whole numbers or text \[N\] or \[N, 1\], or one-hot rows"),
        (X, np.zeros((3, 2, 2)), r"got \(3, 2, 2\) of float64. Convert and save them"),
        (X, np.array([{}, {}, {}]), "#y: of Python objects"),
        (X, np.zeros(3, [("a", "<i4")]), "#y: of the type"),
        (X, np.zeros(3, "M8[s]"), "#y: of the type datetime64"),
    ],
)
def test_arrays_of_another_kind_are_refused_by_name(read, x, y, text):
    with pytest.raises(DataError, match=text):
        read({"d.npz": save_npz(x=x, y=y)})


# Hostile and broken files


def with_header(header: str, rest: bytes = b"") -> bytes:
    head = header.encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + rest


HUGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 1000, 1000), }"
DEEP = "{'descr': " + "(" * 5000 + "}"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (with_header(HUGE, b"123"), "1000000000000000 bytes, and the file has 3. Copy or write"),
        (with_header(HUGE.replace("(1000000000,", "(-1,")), "which has no rows"),
        (with_header(HUGE.replace("'|u1'", "'|S0'")), "which has no rows"),
        (with_header(DEEP), "no header of NumPy"),
        (with_header("__import__('os').abort()"), "no header of NumPy"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 70000, "no header of NumPy"),
        (b"\x93NUMPY\x09\x00", "no header of NumPy"),
        (b"", "no header of NumPy"),
        (save_npy(X)[:-5], r"its header says \(3, 4, 4\) of uint8, 48 bytes, and the file has 43"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_header_is_an_error_before_a_row_is_read(read, content, text, packed):
    files = {"x.npy": content, "y.npy": save_npy(Y)}
    if packed:
        files = {"d.npz": make_zip({"x.npy": content, "y.npy": save_npy(Y)})}
    with pytest.raises(DataError, match=f"{'d.npz#x' if packed else 'x.npy'}: .*{text}"):
        read(files)


def make_zip(members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_a_damaged_archive_names_the_array_and_the_place(read):
    x = draw(50, 20, 20)
    good = make_zip({"x.npy": save_npy(x), "y.npy": save_npy(np.arange(50))})
    changed = bytearray(good)
    changed[9000] ^= 0xFF
    with pytest.raises(DataError, match=r"d\.npz#x: damaged after row 0: .*Copy or write"):
        read({"d.npz": bytes(changed)})
    with pytest.raises(DataError, match=r"d\.npz: damaged in its list of arrays"):
        read({"d.npz": good[:-30]})
    with pytest.raises(DataError, match=r"d\.npz: damaged in its list of arrays"):
        read({"d.npz": b"no archive"})


@pytest.mark.parametrize("packed", [False, True])
def test_changed_bytes_are_an_error_of_the_data_or_of_a_record(read, packed):
    draws, outcomes = random.Random(1), Counter()
    good = save_npz(x=draw(6, 5, 4), y=np.arange(6), packed=packed)
    for _ in range(300):
        content = bytearray(good)
        for _ in range(draws.randint(1, 4)):
            at = draws.randrange(len(content) - 2)
            content[at : at + draws.choice([0, 1, 2])] = bytes([draws.choice([0, 255, at % 256])])
        try:
            read({"d.npz": bytes(content)})
            outcomes["read"] += 1
        except DataError as error:
            assert "d.npz" in str(error) or "found d." in str(error)  # with one array left
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100


def test_a_large_compressed_array_is_to_be_unpacked(read, monkeypatch):
    monkeypatch.setattr(arrays, "MAX_PACKED_ARRAY_BYTES", 100)
    with pytest.raises(DataError, match=r"are compressed. Unpack the file with unzip, and name"):
        read({"d.npz": save_npz(x=draw(5, 20, 20), y=np.arange(5), packed=True)})


def test_images_are_read_in_chunks(raw, read, monkeypatch):
    monkeypatch.setattr(arrays, "_CHUNK_BYTES", 200)
    x = draw(30, 9, 9) / np.float32(255)
    records, _ = read({"d.npz": save_npz(x=x, y=np.arange(30), packed=True)})
    check_images(raw, records, "d.npz#x-", np.rint(x * 255).astype(np.uint8), range(30))


def test_the_rows_of_an_array_are_read_together(raw, read):
    x = draw(40, 6, 6)
    records, _ = read({"d.npz": save_npz(x=x, y=np.arange(40), packed=True)})
    files = [record.file for record in records.values()][::-1]
    reader = RawReader(files, raw.folder)
    assert reader.read(files[0])
    (raw.folder / "d.npz").unlink()  # all others have been read by now
    assert all(map(reader.read, files[1:]))


@pytest.mark.parametrize("content", [b"none", save_npz(x=X), save_npz(x=X[:1]), save_npz(y=X)])
def test_a_file_that_has_changed_is_a_reason_to_retry(raw, read, content):
    records, _ = read({"d.npz": save_npz(x=draw(3, 4, 4), y=Y)})
    raw.add("d.npz", content)
    with pytest.raises(MachineError, match="has changed since the run started"):
        read_raw(list(records.values())[2].file, raw.folder)


# trainyard init


def test_init_recognises_arrays_by_their_names(raw):
    raw.add("mnist.npz", save_npz(x_train=X, y_train=Y, x_test=X, y_test=Y))
    [match] = recognise(view_folder(raw.folder))
    assert isinstance(match, SourceMatch)
    assert (match.type, match.keys) == ("npz", {})
    assert "mnist.npz#x_train, mnist.npz#x_test" in match.reason
    raw.add("weights.npz", save_npz(a=X, b=Y))
    [reason] = recognise(view_folder(raw.folder))
    assert "weights.npz: there is no array of images and labels, found a, b" in reason
    [match] = recognise(view_folder(raw.folder / "mnist.npz"))
    assert match.keys == {"parts": [{"files": "mnist.npz"}]}


def test_an_array_has_at_most_an_image_for_each_byte_of_its_file(read, monkeypatch):
    """2 kB held a million images of one pixel, which took minutes and said nothing."""
    images, labels = np.zeros((10**6, 1, 1), np.uint8), np.zeros(10**6, np.uint8)
    monkeypatch.setattr(npz, "_choose_scale", lambda array: pytest.fail("the images are read"))
    fault = r"d.npz#x: has 1000000 images, allowed are \d{4}\. Each image takes a byte or more"
    with pytest.raises(TooLarge, match=fault):
        read({"d.npz": save_npz(x=images, y=labels, packed=True)})
    monkeypatch.setattr(npz, "MAX_ENTRIES", 4)
    with pytest.raises(TooLarge, match=r"d.npz#x: has 5 images, allowed are 4"):
        read({"d.npz": save_npz(x=draw(5, 20, 20), y=np.arange(5))})
