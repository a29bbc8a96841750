"""`weights`: add, list and verify, in a folder and in a bucket, and a run that begins with them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.jobs.model_check import PlannedTraining
from pipeline_ops.planning.inputs import check_warm_start
from pipeline_ops.retention.collector import Options, collect, explain_path

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "net.npz").write_bytes(CONTENT)
    return tmp_path / "net.npz"


@pytest.fixture(params=["folder", "bucket"])
def root(request, config_file) -> str:
    """The root of the config's store."""
    if request.param == "folder":
        return str(config_file.parent / "root")
    uri = request.getfixturevalue("s3_uri").removesuffix("/models/digits")
    values = yaml.safe_load(config_file.read_text())
    values["storage"]["root"] = uri
    config_file.write_text(yaml.safe_dump(values))
    return uri


def test_weights_are_added_listed_verified_and_found_by_a_plan(root, config_file, file, command):
    words = ["add", "my_net", file, "--sha256", SHA256, "--license", "MIT", "--source", "a friend"]
    output = command("weights", *words, "--config", config_file)
    assert output == "added: train.warm_start: weights my_net\n"
    assert command("weights", *words, "--root", root).startswith("exists already: ")
    lines = command("weights", "list", "--config", config_file).splitlines()
    assert lines[0] == f"my_net  net.npz  0.0 MiB  sha256 {SHA256}"
    assert lines[1].startswith("  license MIT  added 20") and lines[1].endswith(" UTC  a friend")
    assert command("weights", "verify", "--root", root) == "my_net: unchanged\n"

    config = load_config(config_file, {"train.warm_start": "weights my_net"})
    check_warm_start(config)
    (config.root / "weights/my_net/net.npz").write(CONTENT[::-1])
    errors = command("weights", "verify", "--root", root, status=65)
    assert f"{root}/weights/my_net/net.npz has the SHA-256 " in errors


def test_a_wrong_checksum_is_refused_with_the_right_one(root, config_file, file, command):
    words = ["weights", "add", "net", file, "--sha256", "0" * 64, "--license", "MIT"]
    errors = command(*words, "--config", config_file, status=78)
    assert f"has the SHA-256 {SHA256}" in errors and "Nothing was stored" in errors
    assert command("weights", "list", "--root", root) == f"{root}: no weights\n"


def test_a_file_needs_a_checksum_and_one_of_keras_needs_the_published_one(
    config_file, file, command
):
    words = ["weights", "add", "net", file, "--config", config_file, "--license", "MIT"]
    assert "pass --sha256 or --published" in command(*words, status=78)
    errors = command(*words, "--published", "nasnet_large.h5", status=78)
    assert "Keras names 11577c9a518f0070763c2b964a382f17 for nasnet_large.h5" in errors
    without = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
    assert "Keras has no checksum for" in command(*words, "--published", without, status=78)
    command(*words, "--published", without.replace("_no_top", ""), "--sha256", SHA256)
    output = command("weights", "list", "--config", config_file)
    assert output.endswith("_1.0_224.h5  imagenet_class_index.json\n")


def test_the_table_of_keras_is_printed(command):
    lines = command("weights", "published").splitlines()
    assert "nasnet_large.h5  11577c9a518f0070763c2b964a382f17  imagenet_class_index.json" in lines
    assert "nasnet_mobile_no_top.h5  1ed92395b5b598bdda52abe5c0dbfd63  no top" in lines


def test_unknown_weights_are_refused_by_validate_with_the_nearest_name(config_file, file, command):
    words = ["add", "resnet50", file, "--sha256", SHA256, "--license", "MIT"]
    command("weights", *words, "--config", config_file)
    values = yaml.safe_load(config_file.read_text())
    values["train"]["warm_start"] = "weights resnet5"
    text = yaml.safe_dump(values, sort_keys=False)
    config_file.write_text(text)
    [line] = [n for n, each in enumerate(text.splitlines(), 1) if "warm_start" in each]
    errors = command("validate", config_file, status=78)
    assert errors.startswith(
        f"{config_file}:{line}: train.warm_start: there are no weights resnet5 in"
    )
    assert "the nearest valid name is 'resnet50'" in errors
    command("validate", config_file, "--set", "train.warm_start=weights resnet50")


def test_a_deep_check_reads_the_weights_of_the_store(config_file, file, command):
    words = ["add", "resnet50", file, "--sha256", SHA256, "--license", "MIT"]
    command("weights", *words, "--config", config_file)
    config = load_config(config_file, {"train.warm_start": "weights resnet50"})
    planned = PlannedTraining.from_config(config, "python")
    assert Path(planned.weights).read_bytes() == Path(file).read_bytes()
    other = load_config(config_file, {"train.warm_start": "champion"})
    assert PlannedTraining.from_config(other, "python").weights == ""


def test_the_collector_never_removes_weights(config_file, file, command):
    words = ["add", "net", file, "--sha256", SHA256, "--license", "MIT"]
    command("weights", *words, "--config", config_file)
    config, options = load_config(config_file), Options(older_than_days=0, grace_seconds=0)
    collect(config, options)
    assert command("weights", "verify", "--config", config_file) == "net: unchanged\n"
    why = explain_path(config, "weights/net", options)
    assert why == "weights/net stays: weights that people add are never removed."
