"""The import of TensorFlow: it is quick and quiet, and hides no package afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(code: str, **environment: str) -> str:
    """Runs code in a new process and returns its output."""
    inherited = {
        name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


START = "import sys, os\nfrom pipeline_ops.input.tensorflow_start import tf\n"


def test_what_is_not_needed_is_not_imported_and_can_still_be():
    code = (
        START + "print([name in sys.modules for name in ('sklearn', 'scipy', 'keras')])\n"
        "import sklearn, scipy, keras\nprint(tf.keras.Model is keras.Model)"
    )
    assert run(code) == "[False, False, False]\nTrue"


@pytest.mark.training
def test_what_was_imported_before_stays():
    assert run("import scipy\n" + START + "print(sys.modules['scipy'] is scipy)") == "True"


@pytest.mark.training
def test_keras_trains_saves_and_loads_without_them(tmp_path):
    code = (
        START
        + f"""
import numpy
from pipeline_ops.input.keras_start import keras
assert not {{"sklearn", "scipy"}} & {{*sys.modules}}
model = keras.Sequential([keras.layers.Conv2D(2, 3), keras.layers.GlobalAveragePooling2D(), \
keras.layers.Dense(2, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
images = numpy.random.default_rng(0).random((8, 8, 8, 1)).astype("float32")
model.fit(images, numpy.zeros(8), verbose=0)
model.save({str(tmp_path / "model.keras")!r})
again = keras.models.load_model({str(tmp_path / "model.keras")!r})
print(numpy.array_equal(model.predict(images, verbose=0), again.predict(images, verbose=0)))
"""
    )
    assert run(code) == "True"


@pytest.mark.training
def test_the_log_keeps_to_warnings_unless_the_environment_says_otherwise():
    assert run(START + "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])") == "2"
    assert run(START + "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])", TF_CPP_MIN_LOG_LEVEL="1") == "1"
