"""Bundles of weights: whole or absent, never changed, checked wherever they are read, and the table
of the files of `keras.applications`."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from pipeline_ops.artifacts.manifest import NAME
from pipeline_ops.config.model_catalogue import CATALOGUE
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.weights import (
    Bundle,
    BundleFigures,
    Published,
    add_bundle,
    fetch_weights,
    find_bundle,
    find_published,
    list_bundles,
    read_published,
)
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

FIGURES = BundleFigures(license="Apache-2.0", source="a colleague", added="2026-11-27 12:00")


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "net.weights.h5").write_bytes(b"weights" * 100_000)
    return tmp_path / "net.weights.h5"


@pytest.fixture(params=["folder", "bucket"])
def root(request, tmp_path, monkeypatch) -> StorePath:
    if request.param == "folder":
        return open_root(tmp_path / "root")
    return open_root(request.getfixturevalue("s3_uri").removesuffix("/models/digits"))


def test_a_bundle_is_added_once_and_fetched_with_its_checksum(root, file):
    assert add_bundle(root, "net", file, FIGURES)
    assert not add_bundle(root, "net", file, FIGURES)
    assert Bundle.read(root / "weights/net").figures == FIGURES
    found = find_bundle(root, "net")
    assert found.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    fetched = Path(fetch_weights(found))
    assert fetched.name == file.name and fetched.read_bytes() == file.read_bytes()
    other = found.model_copy(update={"digest": "0" * 64})
    with pytest.raises(DataError, match="has other weights than when this training was planned"):
        fetch_weights(other)


def test_another_content_of_the_same_name_is_refused(root, file):
    add_bundle(root, "net", file, FIGURES)
    before = [(each.name, each.num_bytes) for each in (root / "weights/net").walk()]
    file.write_bytes(b"others")
    with pytest.raises(ConfigError, match=r"holds another file, net.weights.h5 .* another name"):
        add_bundle(root, "net", file, FIGURES)
    assert [(each.name, each.num_bytes) for each in (root / "weights/net").walk()] == before


def test_a_bundle_without_a_manifest_does_not_exist_and_can_be_added_again(root, file):
    add_bundle(root, "net", file, FIGURES)
    (root / "weights/net" / NAME).remove()
    assert list(list_bundles(root)) == []
    with pytest.raises(ConfigError, match="there are no weights net in"):
        find_bundle(root, "net")
    assert add_bundle(root, "net", file, FIGURES)


def test_a_wrong_checksum_stores_nothing_and_names_the_one_of_the_file(root, file):
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match=f"has the SHA-256 {sha256}, and not {'0' * 64}"):
        add_bundle(root, "net", file, FIGURES, "0" * 64)
    assert root.walk() == []


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damage_is_found_wherever_the_weights_are_read(root, file, damage):
    add_bundle(root, "net", file, FIGURES)
    stored = root / "weights/net/net.weights.h5"
    stored.write(b"x" * len(file.read_bytes())) if damage == "changed" else stored.remove()
    with pytest.raises(DataError, match=r"net\.weights\.h5 .*(Remove|Publish)"):
        fetch_weights(find_bundle(root, "net"))
    with pytest.raises(DataError, match="Remove the folder of the bundle"):
        Bundle.read(root / "weights/net").check()


@pytest.mark.parametrize("name", ["../net", "Net", "a/b", "", "a" * 64])
def test_a_name_that_is_no_name_is_refused(tmp_path, file, name):
    with pytest.raises(ConfigError, match="a name of weights is like resnet50"):
        add_bundle(open_root(tmp_path / "root"), name, file, FIGURES)


def test_a_manifest_of_something_else_is_no_bundle(tmp_path, file):
    root = open_root(tmp_path / "root")
    add_bundle(root, "net", file, FIGURES)
    path = (root / "weights/net" / NAME).local
    path.write_text(path.read_text().replace('"license"', '"licence"'))
    with pytest.raises(DataError, match="is not the manifest of a bundle of weights"):
        Bundle.read(root / "weights/net")


def test_an_unknown_name_gets_the_nearest(tmp_path, file):
    root = open_root(tmp_path / "root")
    add_bundle(root, "resnet50", file, FIGURES)
    with pytest.raises(ConfigError, match="no weights resnet5 in .*; the nearest .* 'resnet50'"):
        find_bundle(root, "resnet5")


# The table


def test_the_table_has_every_checksum_of_the_source_of_keras():
    import keras.src.applications as applications

    sources = Path(applications.__file__).parent.glob("*.py")
    texts = [path.read_text() for path in sources if "imagenet_utils" not in path.name]
    found = {each for text in texts for each in re.findall(r'"([0-9a-f]{64}|[0-9a-f]{32})"', text)}
    checksums = [row.checksum for row in read_published() if row.checksum]
    assert set(checksums) == found and len(checksums) == len(found) > 80


class Asked(Exception):
    pass


@pytest.mark.models
@pytest.mark.filterwarnings("ignore:`input_shape` is undefined")
@pytest.mark.parametrize(
    "name", sorted({entry.arguments["name"] for entry in CATALOGUE.values() if entry.arguments})
)
@pytest.mark.parametrize("include_top", [True, False])
def test_the_table_has_the_name_the_checksum_and_the_classes_of_each_backbone(
    name, include_top, monkeypatch
):
    """The name and the checksum are those that Keras would download and check."""
    import keras
    from keras.src.utils import file_utils

    def get_file(fname, origin, file_hash=None, **_options):
        raise Asked(fname, file_hash)

    monkeypatch.setattr(file_utils, "get_file", get_file)
    with pytest.raises(Asked) as asked:
        getattr(keras.applications, name)(weights="imagenet", include_top=include_top)
    fname, file_hash = asked.value.args
    found = find_published(fname)
    assert found.checksum == (file_hash or "")
    assert found.classes == ("imagenet_class_index.json" if include_top else "")


def test_a_name_that_keras_does_not_publish_gets_the_nearest():
    with pytest.raises(ConfigError, match="the nearest valid name is 'vgg16_weights_tf_dim_order"):
        find_published("vgg16_weights_tf_dim_ordering_tf_kernel.h5")


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_is_compared_with_the_checksum_of_keras(file, kind):
    checksum = hashlib.new(kind, file.read_bytes()).hexdigest()
    Published("vgg16.h5", checksum, "").check(file)
    wrong = shutil.copy(file, file.with_name("wrong.h5"))
    Path(wrong).write_bytes(b"wrong")
    with pytest.raises(ConfigError, match=f"has the {kind.upper()} .*, and Keras names {checksum}"):
        Published("vgg16.h5", checksum, "").check(Path(wrong))
