"""The candidate's references: real test examples of the data set."""

from __future__ import annotations

import numpy as np
import pytest
from sandbox import remove_from_tests

from pipeline_ops.artifacts.dataset import KEY
from pipeline_ops.artifacts.results import REFERENCE_EXAMPLES
from pipeline_ops.jobs.gang_protocol import TRAINED, CandidateSpec


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_reference_is_an_example_that_was_removed(dataset, make_job_in, tmp_path):
    import tensorflow as tf

    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.training.checkpoints import write_arrays
    from pipeline_ops.training.saved_model_export import export_saved_model

    work, folder = tmp_path / "work", tmp_path / "candidate"
    job = make_job_in(tmp_path, remove_from_tests(dataset, tmp_path / "later", range(0, 10)))()
    for made in (work, folder):
        made.mkdir()
    write_arrays(work / TRAINED, build((16, 16, 1), 10).get_weights())
    export_saved_model(
        CandidateSpec(request=str(job.attempt.request), work=str(work), folder=str(folder))
    )
    records = list(tf.data.TFRecordDataset([str(folder / REFERENCE_EXAMPLES)]).as_numpy_iterator())
    keys = tf.io.parse_example(records, {KEY: tf.io.FixedLenFeature([], tf.string)})[KEY].numpy()
    removed = {
        str(key).encode() for key in range(800, 840, 4)
    }  # the first shard of the test split has every fourth example
    assert len(keys) == 64
    assert removed.isdisjoint(keys)
    assert np.isin(str(840).encode(), keys)
