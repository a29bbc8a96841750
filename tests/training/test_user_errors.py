"""An error of the author's code in a training names its cause, file and line, and no log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tensorflow as tf
from config_files import write_config
from gangs import QUICK, train

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import check_training, plan_training
from pipeline_ops.models.user_errors import describe_call

FAULTY = Path(__file__).with_name("faulty.py")
CASES = {
    "step 5": (
        {"train__model": "faulty:with_lookup"},
        "train.model: faulty:with_lookup raised InvalidArgumentError: indices = 5 is not in [0, 5)",
    ),
    "validation": (
        {"train__model": "faulty:of_fixed_batch"},
        "train.model: faulty:of_fixed_batch raised ValueError in OfFixedBatch: Cannot reshape a "
        "tensor with ",
    ),
    "own step": (
        {"train__model": "faulty:with_own_step"},
        "train.model: faulty:with_own_step raised InvalidArgumentError: exploding gradients",
    ),
    "assert": (
        {"train__loss": "faulty:asserting"},
        "train.loss: faulty:asserting raised InvalidArgumentError: a label is too large Condition "
        "x < y did not hold",
    ),
    "python": (
        {"train__loss": "faulty:with_python"},
        "train.loss: faulty:with_python raised UnknownError: KeyError: 'weights'",
    ),
    "misspelt": (
        {"train__metrics": ["faulty:misspelt"]},
        "train.metrics.0: faulty:misspelt raised AttributeError: module 'tensorflow' has no "
        "attribute 'argmx'",
    ),
    "callback": (
        {"train__callbacks": ["faulty:Reporter"]},
        "train.callbacks: faulty:Reporter raised KeyError in on_epoch_end: 'val_acc'",
    ),
    "inside of numpy": (
        {"train__callbacks": ["faulty:Plotter"]},
        "train.callbacks: faulty:Plotter raised ValueError in on_test_end: cannot reshape array",
    ),
}


@pytest.mark.training
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_an_error_in_a_training_ends_with_the_cause_and_the_authors_line(
    make_job, host_pool, case, workers
):
    options, cause = CASES[case]
    job = make_job(case.replace(" ", "-"), **QUICK, **options, train__workers=workers)
    with pytest.raises(ConfigError) as raised:
        train(job, host_pool)
    message = str(raised.value)
    lines = FAULTY.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.endswith(f"# at: {case}"))
    assert cause in message
    assert message.endswith(f" ({FAULTY}:{number}). Correct it, then retry.")
    location = raised.value.location
    assert (location.file, location.line) == (FAULTY.name, number)
    assert Path(location.folder) / location.file == FAULTY
    assert location.source[number - location.first_line] == lines[number - 1][:200]
    assert raised.value.cure == "Correct it, then retry."
    assert "log is" not in message and "\n" not in message
    index = message.partition(" on ")[0].removeprefix("worker ")
    assert "Traceback" in job.attempt.worker_log(f"worker {index}").read_text()


def test_the_check_of_a_model_names_the_authors_line_apart(
    tmp_path,
):
    text = "def build(shape, classes):\n    return shape.size\n"
    (tmp_path / "nets.py").write_text(text)
    config = load_config(write_config(tmp_path, {"train.model": "nets:build"}))
    with pytest.raises(ConfigError) as raised:
        check_training(plan_training(config, sys.executable), "classification", (8, 8, 1), 10)
    where = raised.value.location
    assert (where.file, where.line, where.folder) == ("nets.py", 2, str(tmp_path))
    assert where.source == tuple(text.splitlines())
    assert raised.value.cure == "Correct it."


def test_of_several_errors_of_a_graph_the_first_is_named():
    text = (
        "Graph execution error:\n\n2 root error(s) found.\n"
        "  (0) INVALID_ARGUMENT:  assertion failed: [too large] [x =] [1]\n"
        "\t [[{{node a}}]]\n"
        "  (1) CANCELLED:  Function was cancelled\n"
        "\t [[{{node b}}]]"
    )
    error = tf.errors.InvalidArgumentError(None, None, text)
    assert describe_call(error) == "InvalidArgumentError: too large x = 1"
