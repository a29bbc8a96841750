"""Words of Keras lead to keys that exist, with values that are valid."""

from __future__ import annotations

import re

import pytest
import yaml

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.keras_words import CURES, find_cure
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.train import Train

WRITTEN = sorted({cure for cure in CURES.values() if re.match(r"write train(?!.*\.\.\.)", cure)})
"""Without those that leave a value open."""


@pytest.mark.parametrize("cure", WRITTEN)
def test_the_config_takes_what_a_cure_says(cure):
    dotted, text = re.fullmatch(r"write train\.([\w.]+): (.*?)(?:, in degrees)?", cure).groups()
    value = yaml.safe_load(text)
    for name in reversed(dotted.split(".")):
        value = {name: value}
    Train.model_validate({"model": "digits_cnn", "strategy": "one_device"} | value)


def test_no_word_is_a_key_of_the_training():
    """A key that stands at a wrong place is led to its own place."""
    keys = {part for key in collect_fields(PipelineConfig) for part in re.split(r"[.\[\]]+", key)}
    assert [key for key in keys if find_cure(key)] == ["batch_size"]  # of `evaluate`


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("RandomFlip", "flip_left_right"),
        ("random_rotation", "rotation"),
        ("zoom", "scale"),
        ("width_shift_range", "shift"),
        ("use_ema", "average_weights"),
        ("lr", "learning_rate"),
        ("beta_1", "class: keras.optimizers:Adam, arguments: {beta_1"),
        ("amsgrad", "arguments: {amsgrad"),
        ("jit_compile", "train.xla"),
        ("run_eagerly", "train.debug: [eager]"),
        ("class_weight", "train.class_weights"),
        ("clipvalue", "clip: {value"),
        ("BATCH_SIZE", "global_batch_size"),
        ("RandAugment", "own: my_module:function"),
    ],
)
def test_a_word_is_found_in_any_spelling(word, key):
    assert key in find_cure(word)


def test_other_words_are_left_alone():
    assert find_cure("epoch") is None and find_cure("learnin_rate") is None
