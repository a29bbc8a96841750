"""Statistics of requests: what is counted, where it lies, and what it never breaks."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline_ops.contract.serving_statistics import ServingStatistics
from pipeline_ops.registry import serving_statistics
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.serving_statistics import locate_statistics, read_statistics
from pipeline_ops.served.requests import RequestStatistics, ServerStatistics

NAMES = ["cat", "dog"]
CAT = {"probabilities": [0.9, 0.1], "classes": 0}


def make_image(width: int = 40, height: int = 20, mode: str = "RGB", value: int = 100, **saved):
    output = io.BytesIO()
    fill = value if len(Image.new(mode, (1, 1)).getbands()) == 1 else None
    image = Image.new(mode, (width, height), fill if fill is not None else (value,) * 3)
    image.save(output, saved.pop("format", "PNG"), **saved)
    return output.getvalue()


def decode(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def record(model: Path | str, images=(), answers=(), **options) -> RequestStatistics:
    with RequestStatistics(model, 1, NAMES, max_share=1, **options) as statistics:
        for index, image in enumerate(images):
            statistics.add(image, answers[index] if answers else CAT)
    return statistics


def read(model: Path | str, days: int = 1) -> ServingStatistics:
    found = read_statistics(locate_statistics(str(model)), days, time.time())
    assert found is not None
    return found


def list_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def exif(orientation: int) -> bytes:
    found = Image.Exif()
    found[0x0112] = orientation
    return found.tobytes()


def cmyk() -> bytes:
    output = io.BytesIO()
    Image.new("CMYK", (40, 20)).save(output, "JPEG")
    return output.getvalue()


@pytest.mark.parametrize(
    "image, size, expected",
    [
        (make_image(), (40, 20), ("PNG", "colour", "1")),
        (make_image(format="JPEG"), (40, 20), ("JPEG", "colour", "1")),
        (make_image(format="JPEG", exif=exif(6)), (20, 40), ("JPEG", "colour", "6")),
        (make_image(format="JPEG", exif=exif(3)), (40, 20), ("JPEG", "colour", "3")),
        (make_image(exif=exif(8)), (20, 40), ("PNG", "colour", "8")),
        (make_image(mode="L"), (40, 20), ("PNG", "grey", "1")),
        (make_image(mode="P"), (40, 20), ("PNG", "palette", "1")),
        (make_image(mode="P", transparency=0), (40, 20), ("PNG", "alpha", "1")),
        (make_image(mode="I;16"), (40, 20), ("PNG", "16 bit", "1")),
        (make_image(format="WEBP"), (40, 20), ("WEBP", "colour", "1")),
        (cmyk(), (40, 20), ("JPEG", "CMYK", "1")),
    ],
)
def test_a_file_is_counted_by_what_its_header_says(tmp_path, image, size, expected):
    record(tmp_path / "digits", [image])
    found = read(tmp_path / "digits")
    sides = (found.features["image_width"].minimum, found.features["image_height"].minimum)
    assert (sides, found.features["image_bytes"].total) == (size, len(image))
    assert found.properties == {
        kind: {value: 1}
        for kind, value in zip(("format", "mode", "orientation"), expected, strict=True)
    }


@pytest.mark.parametrize(
    "answer, labels, score",
    [
        (CAT, {"cat": 1}, 0.9),
        ({"probabilities": np.array([0.2, 0.8], np.float32)}, {"dog": 1}, 0.8),
        (
            {"scores": [0.9, 0.6, 0.4], "classes": [1, 1, 0], "num_detections": 3},
            {"dog": 2},
            0.9,
        ),
        ({"scores": [0.0] * 3, "classes": [0] * 3, "num_detections": 0}, {}, 0.0),
        ({"probabilities": [0.1, 0.2], "classes": 7}, {"7": 1}, 0.2),
        ({"probabilities": [float("nan")] * 2, "classes": 1}, {"dog": 1}, None),
        ({"embedding": [1.0, 2.0]}, {}, None),
        ({"probabilities": "no numbers"}, {}, None),
    ],
)
def test_an_answer_is_counted_by_its_classes_and_its_best_score(tmp_path, answer, labels, score):
    record(tmp_path / "digits", [make_image()], [answer])
    found = read(tmp_path / "digits")
    assert (found.num_images, found.labels) == (1, labels)
    scores = found.features.get("score")
    assert (scores and scores.minimum) == (pytest.approx(score) if score is not None else None)


def test_pixels_are_measured_as_the_model_gets_them(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (50, 30, 3), np.uint8)
    output = io.BytesIO()
    Image.fromarray(pixels).save(output, "PNG")
    record(tmp_path / "digits", [output.getvalue()], to_input=decode)
    features = read(tmp_path / "digits").features
    found = [features[name].minimum for name in ("brightness", "contrast", "red", "green", "blue")]
    assert found == pytest.approx([pixels.mean(), pixels.std(), *pixels.mean((0, 1))])


@pytest.mark.parametrize("image", [b"no image", b"", make_image()[:40], b"\x89PNG\r\n\x1a\n" * 9])
def test_a_file_that_is_no_image_is_counted_as_one(tmp_path, image):
    record(tmp_path / "digits", [image, make_image()], to_input=decode)
    found = read(tmp_path / "digits")
    assert (found.num_images, found.num_measured) == (2, 1)
    assert found.num_unreadable == (1 if image else 0)


def test_the_store_holds_counts_and_nothing_of_the_images(tmp_path):
    images = [make_image(value=value, format="JPEG", comment=b"secret name") for value in (10, 90)]
    record(tmp_path / "models" / "digits", images, to_input=decode)
    [file] = list_files(tmp_path)
    assert file.parent.parent == tmp_path / "models" / "digits.requests"
    content = file.read_bytes()
    assert not any(image[at : at + 8] in content for image in images for at in range(len(image)))
    assert b"secret" not in content and len(content) < 4096
    [line] = content.splitlines()
    assert set(json.loads(line)) == {
        *("model", "version", "start", "end", "num_images", "num_measured"),
        *("features", "labels", "properties"),
    }


def test_a_window_does_not_grow_with_the_requests(tmp_path):
    image, sizes = make_image(), []
    for count in (50, 2000):
        record(tmp_path / str(count), [image] * count)
        sizes.append(list_files(tmp_path / f"{count}.requests")[0].stat().st_size)
    assert sizes[1] < sizes[0] + 300
    assert read(tmp_path / "2000").num_images == 2000


def test_two_servers_and_two_versions_add_up(tmp_path):
    for version, width in ((1, 10), (2, 500), (2, 501)):
        with RequestStatistics(tmp_path / "digits", version, NAMES, max_share=1) as statistics:
            statistics.add(make_image(width), CAT)
    found = read(tmp_path / "digits")
    assert (found.num_images, found.num_windows, found.versions) == (3, 3, {1: 1, 2: 2})
    assert found.features["image_width"].total == 1011 and found.labels == {"cat": 3}
    assert ServingStatistics.model_validate_json(found.model_dump_json()) == found


def test_windows_are_written_while_requests_come(tmp_path):
    with RequestStatistics(tmp_path / "digits", 1, window_seconds=0.05) as statistics:
        statistics.add(make_image(), CAT)
        deadline = time.monotonic() + 30
        while not list_files(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.15)  # windows without a request are not written
    assert len(list_files(tmp_path)) == 1


def test_measuring_takes_its_share_of_the_time_and_requests_none(tmp_path):
    def decode_slowly(_: bytes) -> np.ndarray:
        time.sleep(0.02)
        return np.zeros((4, 4, 3), np.uint8)

    image = make_image()
    statistics = RequestStatistics(tmp_path / "digits", 1, NAMES, decode_slowly, max_share=0.1)
    start = time.monotonic()
    for _ in range(500):
        statistics.add(image, CAT)
    assert time.monotonic() - start < 1.0  # 10 s of measuring
    time.sleep(max(0.0, start + 1.0 - time.monotonic()))
    measured = statistics._counts.num_measured
    assert 1 <= measured <= 6  # a tenth of a second
    statistics.close()
    found = read(tmp_path / "digits")
    assert found.num_images == 500 and found.num_measured < 100


@pytest.mark.parametrize("obstacle", ["file", "link"])
def test_a_store_that_cannot_be_written_to_is_told_once_and_nothing_is_lost(
    tmp_path, caplog, obstacle
):
    folder = tmp_path / "digits.requests"
    if obstacle == "file":
        folder.write_text("in the way")
    else:
        folder.symlink_to(tmp_path / "elsewhere")
    statistics = RequestStatistics(tmp_path / "digits", 1, NAMES)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            statistics.add(make_image(), CAT)
            statistics.flush()
    [warning] = caplog.messages
    assert "statistics of requests are not written, and serving goes on" in warning
    assert "digits.requests" in warning
    folder.unlink()
    statistics.close()
    assert read(tmp_path / "digits").num_images == 3


def test_a_killed_server_loses_one_window(tmp_path):
    program = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).resolve().parents[2])]!r}
from pipeline_ops.served.requests import RequestStatistics
statistics = RequestStatistics({str(tmp_path / "digits")!r}, 1)
for number in range(1, 5):
    for _ in range(100):
        statistics.add(None, {{"probabilities": [1.0]}})
    if number < 4:
        statistics.flush()
print("asked", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"asked\n"
        process.send_signal(signal.SIGKILL)
    assert read(tmp_path / "digits").num_images == 300


def test_days_that_are_too_old_are_removed_and_other_files_stay(tmp_path):
    folder = tmp_path / "digits.requests"
    old = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 30 * 86400))
    kept = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 29 * 86400))
    for name in (old, kept, "notes"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file.jsonl").write_text("")
    record(tmp_path / "digits", [make_image()])
    names = {each.name for each in folder.iterdir()}
    assert len(names) == 3 and {kept, "notes"} < names


WINDOW = {"model": "digits", "version": 1, "start": 5, "end": 9, "num_images": 3}
BRIGHTNESS = {"counts": [3] + [0] * 31, "count": 3, "total": 3, "total_of_squares": 3}


@pytest.mark.parametrize(
    "line, reason",
    [
        ("{", "EOF while parsing"),
        ("[" * 100_000, "recursion limit exceeded"),
        ("[]", "object"),
        ({"version": 0}, "version"),
        ({"num_images": -1}, "num_images"),
        ({"num_images": 10**30}, "num_images"),
        ({"end": 1}, "before its start"),
        ({"key": "a.png"}, "key"),
        ({"labels": {"a" * 300: 1}}, "at most 200 characters"),
        ({"properties": {"format": {"JPEG": 4}}}, "counts more images than there are"),
        ({"properties": {"address": {"10.0.0.1": 1}}}, "properties"),
        ({"features": {"brightness": BRIGHTNESS | {"counts": [3]}}}, "has 1 bins, not 32"),
        ({"features": {"brightness": BRIGHTNESS | {"count": 2}}}, "contradict each other"),
        ({"features": {"brightness": BRIGHTNESS | {"total": 10**60}}}, "out of range"),
        ({"features": {"brightness": BRIGHTNESS | {"maximum": float("nan")}}}, "maximum"),
        ({"features": {"colour": BRIGHTNESS}}, "unknown feature 'colour'"),
    ],
)
def test_a_damaged_line_is_counted_and_named_and_the_others_are_used(tmp_path, line, reason):
    record(tmp_path / "digits", [make_image()])
    [file] = list_files(tmp_path)
    text = line if isinstance(line, str) else json.dumps(WINDOW | line)
    (file.parent / "000000-bad.jsonl").write_text(f"{json.dumps(WINDOW)}\n{text}\n")
    found = read(tmp_path / "digits")
    assert (found.num_images, found.num_damaged) == (4, 1)
    [problem] = found.damaged
    assert "000000-bad.jsonl:2" in problem and reason in problem and len(problem) < 2000


def test_a_file_that_is_too_large_or_a_link_is_damaged(tmp_path):
    record(tmp_path / "digits", [make_image()])
    [file] = list_files(tmp_path)
    (file.parent / "large.jsonl").write_bytes(b" " * (1 << 20 | 1))
    (file.parent / "link.jsonl").symlink_to("/etc/passwd")
    found = read(tmp_path / "digits")
    assert found.num_images == 1 and "large.jsonl" in found.damaged[0] and found.num_damaged == 1


def test_without_requests_in_the_period_there_are_no_statistics(tmp_path):
    record(tmp_path / "digits", [make_image()])
    folder = locate_statistics(str(tmp_path / "digits"))
    assert read_statistics(folder, 7, time.time() + 6 * 86400) is not None
    assert read_statistics(folder, 7, time.time() + 8 * 86400) is None
    assert read_statistics(locate_statistics(str(tmp_path / "other")), 7, time.time()) is None


@pytest.mark.stores
def test_a_bucket_holds_the_same(bucket_root):
    model = f"{bucket_root.uri}/models/digits"
    for width in (10, 20):
        record(model, [make_image(width)])
    found = read(model)
    assert (found.num_images, found.features["image_width"].total) == (2, 30)
    assert Registry(model).list_versions() == []
    serving_statistics.remove_old_days(locate_statistics(model), time.time() + 40 * 86400)
    assert read_statistics(locate_statistics(model), 30, time.time()) is None


@pytest.mark.stores
@pytest.mark.parametrize("key", ["//x", "{day}//x", "{day}/../x"])
def test_a_key_that_is_no_path_hides_the_statistics_and_breaks_nothing(make_root, key):
    root = make_root("s3")
    model, bucket = f"{root.uri}/models/digits", root.uri.removeprefix("s3://")
    record(model, [make_image()])
    day = time.strftime("%Y-%m-%d", time.gmtime())
    root.server.put_empty_object(f"{bucket}/models/digits.requests/{key.format(day=day)}")
    found = read(model)
    assert found.num_damaged == 1 and "digits.requests" in found.damaged[0]


class Model:
    """A version that answers cat, and decodes to the model's size."""

    class_names = NAMES

    def __init__(self, number: int):
        self.number = number

    def to_input(self, file):
        return decode(file).astype(np.float32)


def test_a_server_counts_files_by_version(tmp_path):
    statistics = ServerStatistics(str(tmp_path / "digits"))
    outputs = {"probabilities": np.array([[0.9, 0.1], [0.2, 0.8]]), "classes": np.array([0, 1])}
    statistics.add(Model(1), [make_image(value=20)] * 2, outputs)
    first = statistics._present
    statistics.add(Model(2), [make_image(value=200)] * 2, outputs)
    statistics.close()
    first._thread.join(30)
    found = read(tmp_path / "digits")
    assert (found.versions, found.labels) == ({1: 2, 2: 2}, {"cat": 2, "dog": 2})
    assert found.features["image_width"].count == 4
    assert found.features["brightness"].total == 2 * (20 + 200) * 10**6
