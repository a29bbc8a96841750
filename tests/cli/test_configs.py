"""`validate` and `explain`: the checks of a config before a run."""

from __future__ import annotations

import pytest
import yaml
from config_files import set_words, write_config

from pipeline_ops.cli.main import main


def test_a_good_config_is_described(config_file, command):
    output = command("validate", config_file)
    assert f"{config_file}: ok" in output
    assert "decode > resize" in output
    assert "15 epochs of batch 64 on 2 workers" in output
    assert "replica" not in output


def test_the_batch_and_the_rate_that_follow_the_replicas_are_described(config_file, command):
    scaled = "{batch_size_per_replica: 32, scale_learning_rate: linear, workers: 2}"
    values = yaml.safe_load(config_file.read_text())
    del values["train"]["global_batch_size"]
    values["train"] |= yaml.safe_load(scaled)
    values["train"]["optimizer"]["learning_rate"] = 0.001
    config_file.write_text(yaml.safe_dump(values))
    sentence = "2 replicas x 32 = a global batch of 64, at a learning rate of 0.002 (0.001 x 2). "
    assert f"  batch      {sentence}" in command("validate", config_file)


def test_the_schedule_is_described_in_plain_words(config_file, command):
    expected = {
        "null": "manually only",
        "'0 3 * * *'": "on the schedule 0 3 * * * (UTC)",
        "{assets: [raw, labels], watch_seconds: 60}": (
            "on an event of the asset raw or labels or when the raw files change "
            "(checked every 60 s)"
        ),
    }
    for schedule, words in expected.items():
        output = command("validate", config_file, "--set", f"schedule={schedule}")
        assert f"digits; runs start {words}\n" in output


def test_several_files_and_folders_are_validated_in_one_go(config_file, tmp_path, capsys):
    """A broken one does not keep the others from being checked."""
    broken, good = tmp_path / "another" / "broken.yaml", config_file
    broken.parent.mkdir()
    broken.write_text("pipeline: broken\n\t[")
    assert main(["validate", str(broken), str(good)]) == 78
    output = capsys.readouterr()
    assert f"{broken}:2: not valid YAML: a tab" in output.err
    assert f"{good}: ok" in output.out
    assert main(["validate", str(tmp_path)]) == 0
    assert main(["validate", str(broken.parent)]) == 78
    (tmp_path / "empty").mkdir()
    assert main(["validate", str(tmp_path / "empty")]) == 78
    assert "empty: no YAML files found" in capsys.readouterr().err


def test_two_pipelines_with_one_model_are_refused_until_each_names_the_other(config_file, command):
    folder = config_file.parent
    changes = {"storage.root": "root", "preprocess.source.path": "raw"}
    changes |= {"pipeline": "copied", "train.workers": 2, "train.global_batch_size": 64}
    write_config(folder, changes, name="copied.yaml")
    errors = command("validate", folder, status=78)
    assert errors == (
        f"{folder}/copied.yaml:54 and {folder}/digits.yaml:54: export.model: the pipelines copied "
        f"and digits publish the same model, {folder}/root/models/digits, and would replace each "
        "other's. Give one of them another model, or set export.shared_with: [digits] in "
        "copied.yaml and export.shared_with: [copied] in digits.yaml.\n"
    )
    write_config(folder, changes | {"export.shared_with": ["digits"]}, name="copied.yaml")
    errors = command("validate", folder, status=78)
    assert errors.endswith("or set export.shared_with: [copied] in digits.yaml.\n")
    write_config(folder, {"export.shared_with": ["copied"]}, config_file)
    assert "copied.yaml: ok" in command("validate", folder)
    write_config(folder, changes | {"storage.root": "another"}, name="copied.yaml")
    command("validate", folder)


def test_a_champion_of_another_pipeline_is_named(config_file, publish, command):
    publish(1)
    config_file.rename(renamed := config_file.with_name("numbers.yaml"))
    errors = command("validate", renamed, "--set", "pipeline=numbers", status=78)
    assert "the champion of digits (version 1) comes from pipeline digits, and this is" in errors
    words = set_words("pipeline=numbers", "export.shared_with=[digits]")
    assert "numbers.yaml: ok" in command("validate", renamed, *words)


def test_a_folder_in_place_of_a_file_is_answered_with_its_files(config_file, command):
    assert (
        f"{config_file.parent}: cannot be read: Is a directory. Correct the path. Name one of its "
        "files: digits.yaml"
    ) in command("explain", config_file.parent, status=78)


def test_places_are_named_as_the_user_has_named_the_file(config_file, monkeypatch, command):
    monkeypatch.chdir(config_file.parent)
    for override in (
        "train.model=acme.nets:small",
        "preprocess.stages=[decode, {resize: {heigth: 3}}]",
    ):
        errors = command("validate", "digits.yaml", "--set", override, status=78)
        assert all(line.startswith("digits.yaml") for line in errors.splitlines())


def test_everything_that_is_wrong_is_said_at_once_with_its_place(config_file, command):
    text = config_file.read_text().replace("epochs: 15", "epoch: 15")
    text = text.replace("shards: 8", "shards: none")
    config_file.write_text(text)
    lines = text.splitlines()
    epoch, shards = (lines.index(line) + 1 for line in ("  epoch: 15", "  shards: none"))
    rule = "train.epoch: unknown key; the nearest valid name is 'epochs'"
    errors = command("validate", config_file, status=78).splitlines()
    assert f"{config_file}:{epoch}: {rule}" in errors
    assert any(error.startswith(f"{config_file}:{shards}: preprocess.shards: ") for error in errors)


def test_a_missing_file_is_a_config_error(tmp_path, command):
    assert "No such file" in command("run", tmp_path / "no.yaml", status=78)


@pytest.fixture
def explain(config_file, command):
    """Returns the forecast of each task, and its reason."""

    def explain(*more: str) -> dict[str, tuple[str, str]]:
        rows = [
            line.split(maxsplit=2) for line in command("explain", config_file, *more).splitlines()
        ]
        return {task: (verdict, reason) for task, verdict, reason in rows}

    return explain


@pytest.fixture
def evaluate(make_artifact):
    """Makes the artifacts of a run up to its evaluation."""

    def evaluate(**figures: object) -> None:
        data = make_artifact("preprocess", {})
        made = {"preprocess": data, "train": make_artifact("train", {"preprocess": data})}
        make_artifact("evaluate", made, **figures)

    return evaluate


def test_before_the_first_run_everything_runs(explain):
    assert explain() == {
        "preprocess": ("runs", "never made before"),
        "train": ("runs", "because preprocess runs"),
        "evaluate": ("runs", "because preprocess and train run"),
        "export": ("runs", "because train and evaluate run"),
    }


def test_what_is_there_is_cached_and_a_changed_key_is_named(evaluate, explain):
    evaluate()
    assert [verdict for verdict, _ in explain().values()] == ["cached", "cached", "cached", "runs"]
    changed = explain("--set", "train.optimizer.learning_rate=0.01")
    assert changed["preprocess"][0] == "cached"
    assert changed["train"] == ("runs", "config optimizer.learning_rate: 0.001 -> 0.01")
    assert changed["export"] == ("runs", "because train and evaluate run")


def test_a_gate_that_was_not_passed_skips_the_export_and_asks_nobody(explain, evaluate):
    rule = {"metric": "accuracy", "passed": False, "text": "accuracy 0.9 is below 0.975"}
    evaluate(gate_passed=False, rules=[rule])
    skipped = ("skipped", "the gate did not pass: accuracy 0.9 is below 0.975")
    assert explain()["export"] == skipped
    assert explain("--set", "evaluate.approval={}")["approve"] == skipped


def test_where_a_person_is_asked_it_says_so(evaluate, explain):
    approval = ("--set", "evaluate.approval={timeout_seconds: 60}")
    before = explain(*approval)
    assert list(before) == ["preprocess", "train", "evaluate", "approve", "export"]
    asks = "a person for 60 s, if the gate passes (without an answer: reject)"
    assert before["approve"] == ("asks", asks)
    evaluate()
    after = ("asks", "a person for 60 s (without an answer: reject)")
    assert explain(*approval)["approve"] == after
    assert "approve" not in explain(*approval, "--set", "evaluate.approval=null")


def test_the_ui_says_which_schedules_run_and_which_are_paused():
    from pipeline_ops.cli.commands.ui import describe_schedules

    dags = [
        {"dag_id": "nightly", "timetable_summary": "0 3 * * *", "is_paused": False},
        {"dag_id": "held", "timetable_summary": "Asset", "is_paused": True},
        {"dag_id": "by_hand", "timetable_summary": None, "is_paused": True},
    ]
    assert list(describe_schedules(dags)) == [
        "Schedules nightly (0 3 * * *)",
        (
            "Paused    held: scheduled runs start only after you unpause it in the UI, "
            "with the switch next to its name"
        ),
    ]
