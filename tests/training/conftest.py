"""Gangs on this host, and a data set that breaks a training."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from gangs import QUICK
from launch.running import make_agent_spec
from manifests import list_again

from pipeline_ops.contract.dataset import KEY, LABEL
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.places.local import LocalLauncher

BROKEN_KEY = "120"


@pytest.fixture(scope="module")
def host_pool(user_package, tmp_path_factory):
    """A pool of this host. Its processes, and plans made here, find the modules next to this file
    as they find a user's package."""
    folder = str(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        own_folder = tmp_path_factory.mktemp("host")
        # It is idle while a test trains in another way.
        spec = make_agent_spec(own_folder, silence_timeout_seconds=600)
        host_pool = HostPool(LocalLauncher(), spec)
        yield host_pool
        host_pool.close()


@pytest.fixture(scope="session")
def broken_dataset(dataset, tmp_path_factory) -> str:
    """A data set in which the label of one training example makes the loss of its batch NaN."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("broken") / "dataset"
    shutil.copytree(Path(dataset).parent, folder)
    shard = folder / "train-00000-of-00004.tfrecord"
    records = [
        tf.train.Example.FromString(record)
        for record in tf.data.TFRecordDataset([str(shard)]).as_numpy_iterator()
    ]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for example in records:
            if example.features.feature[KEY].bytes_list.value[0] == BROKEN_KEY.encode():
                example.features.feature[LABEL].int64_list.value[0] = 77
            writer.write(example.SerializeToString(deterministic=True))
    manifest = read_manifest(dataset)
    write_manifest(folder, manifest.model_copy(update={"files": list_again(folder, manifest)}))
    return str(folder / "manifest.json")


@pytest.fixture
def make_broken(broken_dataset, make_job_in, tmp_path, host_pool):
    """Makes train jobs with the broken data set."""
    make = make_job_in(tmp_path, broken_dataset)
    return lambda name, **more: make(name, **QUICK, train__loss="own_watchers:loss", **more)
