"""Which raw files the challenger is asked about, and what is said without any."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline_ops.contract.dataset import StageFigures
from pipeline_ops.evaluation.as_served import find_raw_tests
from pipeline_ops.served.contract import PREPROCESSING
from pipeline_ops.served.preprocessing import Preprocessing


@pytest.fixture
def make_model(tmp_path):
    """Makes a SavedModel's folder with the asset alone. Versions of before have none."""

    def make(name: str, served: str) -> SimpleNamespace:
        folder = tmp_path / name
        (folder / "assets").mkdir(parents=True)
        if served:
            stages = (StageFigures(name="decode", served="in_graph"),)
            stages += (StageFigures(name="denoise", served=served),)
            (folder / "assets" / PREPROCESSING).write_text(Preprocessing(stages).to_json())
        return SimpleNamespace(saved_model=folder)

    return make


@pytest.mark.parametrize(
    ("champions", "is_told"),
    [([], False), (["by_client"], False), (["in_graph"], True), ([""], True)],
)
def test_clients_of_a_champion_that_takes_files_are_told_of(make_model, champions, is_told):
    models = [make_model("challenger", "by_client")]
    models += [make_model(f"champion{index}", each) for index, each in enumerate(champions)]
    inputs = SimpleNamespace(raw_test_files=["raw-test"], models=models)
    found = find_raw_tests(inputs, SimpleNamespace(takes_files=False))
    assert found.reason.startswith("raw files are not answered: denoise is left to the client")
    assert ("The champion answers them, so its clients have to change" in found.reason) == is_told
