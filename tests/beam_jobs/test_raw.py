"""Reading the bytes of one record."""

from __future__ import annotations

import dataclasses

import pytest

from beam_jobs.io.example import _TrainExample
from beam_jobs.io.tfrecord import frame
from beam_jobs.raw import PackedImage, digest_image, read_raw
from pipeline_ops.contracts.errors import MachineError
from pipeline_ops.contracts.listing import list_raw_files


def packed(image: bytes) -> bytes:
    message = _TrainExample()
    message.features.feature["image"].bytes_list.value.append(image)
    return frame(message.SerializeToString())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


@pytest.fixture
def second(folder, tmp_path) -> PackedImage:
    """The second image of a file of two."""
    first = packed(b"first")
    (folder / "a.record").write_bytes(first + packed(b"second"))
    [container] = list_raw_files(folder, tmp_path / "listings").files
    return PackedImage("2", 6, digest_image(b"second"), container, len(first), "image")


def test_an_image_in_a_tfrecord_is_read_from_its_place(second, folder):
    assert read_raw(second, folder) == b"second"


def test_equal_images_have_equal_digests_wherever_they_are(second, folder, tmp_path):
    (folder / "b.jpg").write_bytes(b"second")
    assert list_raw_files(folder, tmp_path / "listings").files[1].digest == second.digest


@pytest.mark.parametrize("change", [{"offset": 3}, {"offset": 0}, {"offset": 10_000}, {"feature": "label"}, {"digest": digest_image(b"other")}])
def test_what_is_not_the_image_any_more_is_a_reason_to_retry(second, folder, change):
    with pytest.raises(MachineError, match="2 has changed since the run started; retry"):
        read_raw(dataclasses.replace(second, **change), folder)


def test_a_file_that_is_gone_is_a_reason_to_retry(second, folder):
    (folder / "a.record").unlink()
    with pytest.raises(MachineError, match="2 could not be read: No such file or directory"):
        read_raw(second, folder)
