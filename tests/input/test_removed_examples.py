"""A data set from which a later generation has removed examples."""

from __future__ import annotations

from sandbox import remove_from_tests

from pipeline_ops.config.train import InputOptions
from pipeline_ops.contract.dataset import list_shards
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.job.local_inputs import open_host_dataset
from pipeline_ops.system.disk_cache import HostCache


def test_training_opens_a_data_set_without_what_was_removed_from_it(dataset, tmp_path):
    """The splits of a worker match its manifest."""
    from pipeline_ops.input.reading import open_split

    uri = remove_from_tests(dataset, tmp_path / "later", [1, 2])
    manifest = read_manifest(uri)
    validation = list_shards(manifest, "validation")[1].path
    write_manifest(
        tmp_path / "later",
        manifest.model_copy(update={"figures": manifest.figures | {"removed": {validation: [3]}}}),
    )
    cache = HostCache(tmp_path / "host", 1 << 30)
    opened = open_host_dataset(uri, InputOptions(), cache, print)
    assert open_split(opened, "train").removed == ((), (), (), ())
    assert open_split(opened, "validation").removed == ((), (3,), (), ())
