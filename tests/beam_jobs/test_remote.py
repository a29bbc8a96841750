"""Raw files in an object store: a real S3 server in a process of its own, and a WebDAV server."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote
from wsgiref.simple_server import WSGIRequestHandler, make_server

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets
from object_servers.fault_proxy import FaultProxy
from object_servers.faults import Faults
from object_servers.fixtures import BUCKET_KINDS, set_environment
from publishers import forget_clients
from pydantic import TypeAdapter
from wsgidav.wsgidav_app import WsgiDAVApp

from beam_jobs.io.example import pack
from beam_jobs.io.raw import RawReader
from beam_jobs.sources import read_records
from pipeline_ops.config.sources import AnySource
from pipeline_ops.errors import ConfigError, DataError, ExitCode, MachineError
from pipeline_ops.raw_data.folder import resolve_raw_folder
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.remote import RemoteFolder
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.tfrecord import frame_record


class Store:
    """A folder in the bucket."""

    def __init__(self, uri: str):
        self.uri, self.root = uri, open_root(uri)

    def put(self, name: str, content: bytes) -> None:
        (self.root / name).write(content)

    def put_literally(self, name: str) -> None:
        """Makes an empty object of a name that is no path."""
        bucket, _, folder = self.uri.removeprefix("s3://").partition("/")
        client = boto3.client("s3", region_name="us-east-1")
        client.put_object(Bucket=bucket, Key=f"{folder}/{name}")

    def fill(self, folder) -> None:
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(str(file.relative_to(folder)), file.read_bytes())

    def remove(self, name: str) -> None:
        (self.root / name).remove()

    @property
    def folder(self) -> RemoteFolder:
        return RemoteFolder(self.uri)


@pytest.fixture
def store(s3_uri) -> Store:
    return Store(s3_uri)


@pytest.fixture
def remote(animals, store):
    """The pipeline of `animals`, whose raw files are in the store."""
    store.fill(animals.raw)
    return animals, store


def run(remote, **overrides):
    animals, store = remote
    return animals.run(source__path=store.uri, **overrides)


def succeeded(outcome):
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    return outcome


@pytest.mark.parametrize("runner", [{"workers": 1}, {"workers": 2}])
def test_the_same_shards_from_a_local_folder_and_from_s3(remote, encode, runner):
    animals, store = remote
    for name, content in (
        ("cat/50% off+ä.png", encode(seed=70)),
        ("dog/broken.png", b"no image"),
        (".hidden/x.png", b"x"),
        ("notes.txt", b"list"),
    ):
        animals.add(name, content)
        store.put(name, content)
    local, far = (
        succeeded(animals.run(rejects={"max_count": 2})),
        succeeded(run(remote, rejects={"max_count": 2}, runner=runner)),
    )
    assert local.artifact != far.artifact
    assert far.shards == local.shards
    assert far.quarantine == local.quarantine
    assert far.bad_bytes == local.bad_bytes
    assert far.bad_bytes["dog/broken.png"] == b"no image"
    ours, theirs = (json.loads(outcome.contents["statistics.json"]) for outcome in (far, local))
    assert (ours["splits"], ours["duplicates"]) == (theirs["splits"], theirs["duplicates"])


def test_only_new_changed_and_removed_objects_make_work(remote, encode):
    animals, store = remote
    first = succeeded(run(remote))
    assert animals.plan(source__path=store.uri).is_cached
    store.put("cat/new.png", encode(seed=80))
    store.put("cat/001.png", encode(seed=81))
    store.remove("dog/002.png")
    store.put("dog/004.png", encode(seed=4))  # the same again
    second = succeeded(run(remote))
    built = {
        file.path: file.num_examples
        for file in second.manifest.files
        if "-g0002-" in file.path and file.path in second.shards
    }
    assert sum(built.values()) == 2
    assert {
        name: digest for name, digest in second.shards.items() if name not in built
    }.items() <= first.shards.items()
    assert sum(second.manifest.figures["num_examples"].values()) == 60


def test_annotations_and_images_of_voc_yolo_and_manifests_are_read_from_s3(pipeline, store, encode):
    box = b"<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
    lines = []
    for index in range(40):
        store.put(f"photos/{index}.png", encode(seed=index))
        lines.append(
            json.dumps(
                {
                    "path": f"{index}.png",
                    "boxes": [{"xmin": 1, "ymin": 1, "xmax": 5, "ymax": 6, "label": "cell"}],
                }
            )
        )
        store.put(f"voc/JPEGImages/{index}.png", encode(seed=index))
        store.put(
            f"voc/Annotations/{index}.xml",
            b"<annotation><object><name>cell</name>" + box + b"</object></annotation>",
        )
        store.put(f"yolo/images/{index}.png", encode(seed=index))
        store.put(f"yolo/labels/{index}.txt", b"0 0.5 0.5 0.5 0.5\n")
    store.put("yolo/data.yaml", b"path: /mnt/yolo\ntrain: images\nnames: [cell]\n")
    store.put("boxes.jsonl", "\n".join(lines).encode())
    manifest = {
        "type": "jsonl",
        "path": store.uri,
        "manifest": "boxes.jsonl",
        "images": "photos",
        "task": "detection",
    }
    voc = {"type": "voc", "path": f"{store.uri}/voc", "image_sets": None}
    for source in (manifest, voc, {"type": "yolo", "path": f"{store.uri}/yolo"}):
        figures = succeeded(pipeline.run(source=source)).manifest.figures
        assert sum(counts["cell"] for counts in figures["labels"].values()) == 40


def write_tar(folder, images):
    with tarfile.open(folder / "a.tar", mode="w") as tar:
        for index, image in enumerate(images):
            for suffix, content in (("png", image), ("cls", b"%d" % (index % 2))):
                info = tarfile.TarInfo(f"{index}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def write_tfrecord(folder, images):
    records = (
        pack({"image/class/text": b"%d" % (index % 2), "image/encoded": image})
        for index, image in enumerate(images)
    )
    frames = [part for record in records for part in frame_record(record)]
    (folder / "a.record").write_bytes(b"".join(frames))


def write_tfds(folder, images):
    """Writes the files that TensorFlow Datasets reads without the code of a builder."""
    folder = folder / "spots" / "1.0.0"
    folder.mkdir(parents=True)
    kinds = tensorflow_datasets.features
    features = kinds.FeaturesDict(
        {
            "image": kinds.Image(shape=(None, None, 1), encoding_format="png"),
            "label": kinds.ClassLabel(names=["0", "1"]),
        }
    )
    features.save_config(folder)
    split = {"name": "train", "shardLengths": [str(len(images))], "numBytes": "1"}
    split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    info = {"name": "spots", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    records = (pack({"image": image, "label": i % 2}) for i, image in enumerate(images))
    frames = [part for record in records for part in frame_record(record)]
    (folder / "spots-train.tfrecord-00000-of-00001").write_bytes(b"".join(frames))


def write_parquet(folder, images):
    columns = {"image": images, "label": [str(index % 2) for index in range(len(images))]}
    columns["unread"] = [random.Random(index).randbytes(20_000) for index in range(len(images))]
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=8)


PACKED = {
    "webdataset": (write_tar, {"task": "classification"}),
    "tfrecord": (write_tfrecord, {"task": "classification", "parts": [{"files": "*.record"}]}),
    "tfds": (write_tfds, {"builder": "spots", "parts": [{"name": "train"}]}),
    "parquet": (write_parquet, {"task": "classification"}),
}


@pytest.fixture(params=PACKED)
def packed(request, pipeline, store, encode):
    """A source of 41 images, two of them equal, that are in the pipeline's folder and in S3."""
    write, source = PACKED[request.param]
    write(pipeline.raw, [encode(64, 64, seed=index % 40) for index in range(41)])
    store.fill(pipeline.raw)
    return {"type": request.param, "path": store.uri, **source}


def read_images(source):
    """The images of a source by key, and its folder."""
    section = TypeAdapter(AnySource).validate_python(source)
    folder = RemoteFolder(section.folder)
    records, rejected, *_ = read_records(section, Listing(folder, folder.list_files()))
    assert not rejected
    return [record.file for record in records], folder


def test_the_same_shards_from_packed_images_in_a_folder_and_in_s3(pipeline, packed):
    far = succeeded(pipeline.run(source=packed, duplicates="remove_exact"))
    near = succeeded(pipeline.run(source=packed | {"path": "../raw"}, duplicates="remove_exact"))
    assert far.shards == near.shards
    assert far.quarantine == near.quarantine and len(far.quarantine) == 1


@pytest.mark.parametrize("change", [bytes, lambda size: bytes(size // 2), lambda size: b""])
def test_packed_images_that_have_changed_are_a_reason_to_retry(store, packed, change):
    [*_, image], folder = read_images(packed)
    file = image.container
    stored = open_root(folder.uri) / file.key
    stored.write(change(file.num_bytes))
    with pytest.raises(MachineError, match="has changed since the run started. Retry"):
        RawReader([image], folder).read(image)
    stored.remove()
    with pytest.raises(MachineError, match=f"cannot read {file.key}, which existed when"):
        RawReader([image], folder).read(image)


@pytest.mark.stores
def test_of_packed_images_only_the_parts_that_hold_them_are_read(
    packed, object_servers, monkeypatch
):
    server = object_servers["s3"]
    with FaultProxy(server.address) as proxy:
        set_environment(monkeypatch, server.build_environment(proxy.address))
        forget_clients()
        images, folder = read_images(packed)
        image, file = images[9], images[9].container
        is_parquet = packed["type"] == "parquet"
        scanned = proxy.traffic["GET"].bytes_received
        assert scanned < file.num_bytes * (0.4 if is_parquet else 1.2)
        proxy.reset_traffic()
        assert len(RawReader([image], folder).read(image)) == image.num_bytes
        group_bytes = (64 << 10) + 12 * image.num_bytes  # with the end of the file
        limit = group_bytes if is_parquet else image.num_bytes
        assert proxy.traffic["GET"].bytes_received <= limit < file.num_bytes / 8
    forget_clients()


def test_metadata_are_copied_into_the_temporary_folder_only(store, tmp_path):
    write_tfds(tmp_path, [b"image"])
    store.fill(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    store.put(f"spots/{quote(str(tmp_path), safe='')}%2Felsewhere%2F1.json", b"{}")
    _, source = PACKED["tfds"]
    [image], _ = read_images({"type": "tfds", "path": store.uri, **source})
    assert image.num_bytes == 5
    assert not list((tmp_path / "elsewhere").iterdir())


def test_equal_objects_are_duplicates(remote, encode):
    animals, store = remote
    store.put("cat/copy.png", encode(seed=1))
    outcome = succeeded(run(remote, duplicates="remove_exact"))
    assert [
        (line["key"], line["reason"])
        for line in outcome.quarantine
        if line["reason"] == "duplicate"
    ] in ([("cat/copy.png", "duplicate")], [("cat/001.png", "duplicate")])


def test_objects_are_fetched_a_few_ahead_and_some_may_be_left_out(remote):
    files = remote[1].folder.list_files()
    assert len(files) == 60
    reader = RawReader(files, remote[1].folder)
    assert [reader.read(file) for file in files[::7]] == [
        (remote[1].root / file.key).read() for file in files[::7]
    ]
    with pytest.raises(LookupError, match="is not one of the records that follow"):
        reader.read(files[0])


def test_a_name_is_taken_as_it_is_and_an_object_may_be_empty(store):
    contents = {
        "a[1].png": b"brackets",
        "a1.png": b"one",
        "b*?.png": b"star",
        "empty.png": b"",
        "per%20cent+.png": b"signs",
    }
    for name, content in contents.items():
        store.put(name, content)
    files = store.folder.list_files()
    assert sorted(store.folder.read(files)) == sorted(contents.values())
    assert store.folder.read([]) == []


@pytest.mark.parametrize("kind", BUCKET_KINDS)
def test_each_store_says_with_the_content_which_version_was_read(make_root, kind):
    store = Store(make_root(kind).uri)
    for name in ("cat/50% off+ä.png", "dog/[1].png"):
        store.put(name, b"one")
    files = store.folder.list_files()
    assert [file.key for file in files] == ["cat/50%25 off+ä.png", "dog/[1].png"]
    assert store.folder.read(files) == [b"one"] * 2
    assert store.folder.read_parts([(files[1], 1, 1)]) == [b"n"]
    store.put("dog/[1].png", b"two")
    with pytest.raises(MachineError, match=r"dog/\[1\].png has changed since the run started"):
        store.folder.read(files)


def test_an_object_that_stands_for_a_folder_is_no_file(store):
    """Consoles of stores make them: empty objects whose names end with a slash."""
    store.put("cat/1.png", b"cat")
    store.put("v1.0/cat/2.png", b"cat")
    for folder in ("cat/", "dog/", "v1.0/", "v1.0/dog/"):
        store.put_literally(folder)
    assert [file.key for file in store.folder.list_files()] == ["cat/1.png", "v1.0/cat/2.png"]


# What can go wrong


def test_an_object_whose_name_is_no_path_is_named(store):
    store.put_literally("cat//1.png")
    with pytest.raises(DataError, match=r"cat//1.png: .* cannot be listed.* Remove this object"):
        store.folder.list_files()


def test_an_object_that_was_written_anew_since_the_listing_is_a_reason_to_retry(remote, encode):
    animals, store = remote
    files = store.folder.list_files()
    store.put("cat/001.png", encode(seed=90)[:-1] + b"x")
    store.remove("cat/003.png")
    with pytest.raises(MachineError, match="cat/001.png has changed since the run started. Retry"):
        store.folder.read(files[:1])
    with pytest.raises(
        MachineError,
        match="cannot read cat/003.png, which existed when the run started",
    ):
        store.folder.read(files[1:2])


def test_an_object_in_parts_has_another_etag_than_the_same_content_in_one_part(store, tmp_path):
    (tmp_path / "large.bin").write_bytes(bytes(6 << 20))
    (store.root / "large.bin").upload(tmp_path / "large.bin")
    [large] = store.folder.list_files()
    assert "-" in large.version
    assert store.folder.read([large]) == [bytes(6 << 20)]
    store.put("large.bin", bytes(6 << 20))
    with pytest.raises(MachineError, match="large.bin has changed"):
        store.folder.read([large])


def test_a_bucket_that_is_not_there_is_named(store):
    with pytest.raises(
        ConfigError, match="s3://no-such-bucket/raw at http://.*: there is no such bucket"
    ):
        RemoteFolder("s3://no-such-bucket/raw").list_files()


def test_an_empty_place_says_where_images_belong(animals, store):
    outcome = animals.run(source__path=f"{store.uri}/nothing")
    assert outcome.exit_code is ExitCode.DATA
    assert (
        f"{store.uri}/nothing: there are no files. Put a folder with the images of each class there"
    ) in outcome.message


def test_a_store_that_does_not_answer_is_a_reason_to_retry(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    retried = pytest.raises(MachineError, match="Check that the store can be reached, then retry")
    with wait_at_most(0), retried:
        RemoteFolder("s3://trainyard/raw").list_files()


@pytest.mark.stores
def test_raw_files_outlast_an_outage_of_which_one_line_speaks(make_root, monkeypatch, caplog):
    root = make_root("s3")
    with FaultProxy(root.server.address) as proxy:
        set_environment(monkeypatch, root.server.build_environment(proxy.address))
        forget_clients()
        Store(root.uri).put("a.png", b"content")
        folder = RemoteFolder(root.uri)
        files = folder.list_files()
        with ThreadPoolExecutor(3) as pool, proxy.failing(refused=True):
            calls = [
                pool.submit(folder.list_files),
                pool.submit(folder.read, files),
                pool.submit(folder.read_parts, [(files[0], 0, 3)]),
            ]
            time.sleep(30)
            proxy.faults = Faults()
            assert [call.result() for call in calls] == [files, [b"content"], [b"con"]]
    forget_clients()
    [begin] = [each for each in caplog.messages if "The store is away since" in each]
    assert f"{root.uri}" in begin and proxy.address in begin


def test_without_credentials_the_message_says_where_they_are_looked_for(store):
    """In a process of its own, whose client has never seen any."""
    code = """
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.remote import RemoteFolder
from pipeline_ops.storage.store_options import wait_at_most
try:
    with wait_at_most(0):
        RemoteFolder("s3://trainyard/raw").list_files()
except MachineError as error:
    print(error)
"""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("AWS_")
    } | {
        "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"],
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    }
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert (
        "s3://trainyard/raw: there are no credentials in the environment, and the machine has no "
        "role"
    ) in said


@pytest.fixture
def web_server(tmp_path):
    """A folder, and the address at which a WebDAV server shows it."""
    folder = tmp_path / "web"
    folder.mkdir()
    app = WsgiDAVApp(
        {
            "provider_mapping": {"/": str(folder)},
            "simple_dc": {"user_mapping": {"*": True}},
            "verbose": 0,
        }
    )
    with make_server("127.0.0.1", 0, app, handler_class=_QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_files_on_a_web_server_with_webdav(web_server):
    root, address = web_server
    (root / "animals" / "cat").mkdir(parents=True)
    (root / "animals" / "cat" / "1 ä%.png").write_bytes(b"one")
    folder = RemoteFolder(f"{address}/animals")
    [file] = folder.list_files()
    assert (file.key, folder.read([file])) == ("cat/1 ä%25.png", [b"one"])
    (root / "animals" / "cat" / "1 ä%.png").write_bytes(b"three")
    with pytest.raises(MachineError, match="cat/1 ä%25.png has changed"):
        folder.read([file])


def test_a_web_server_without_webdav_is_named(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    with server:
        threading.Thread(target=server.serve_forever).start()
        with wait_at_most(0), pytest.raises(ConfigError, match="does not list its files by WebDAV"):
            RemoteFolder(f"http://127.0.0.1:{server.server_port}/raw").list_files()
        server.shutdown()


def test_a_file_uri_is_a_local_folder(tmp_path):
    assert resolve_raw_folder(f"file://{tmp_path}", tmp_path / "configs") == tmp_path
    assert resolve_raw_folder("raw", tmp_path / "configs") == tmp_path / "configs" / "raw"
    assert resolve_raw_folder("s3://bucket/raw/", tmp_path) == RemoteFolder("s3://bucket/raw")


def test_a_wrong_prefix_is_named_with_the_nearest_one(remote):
    """Walk section 5: it was "there is no usable file to show"."""
    animals, store = remote
    outcome = animals.run(source__path=f"{store.uri}x")
    assert outcome.exit_code is ExitCode.DATA
    assert outcome.message.startswith(f"{store.uri}x: there are no files. ")
    assert outcome.message.endswith(f" The most similar URI is {store.uri}.")
