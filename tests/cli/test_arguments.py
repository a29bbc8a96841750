"""The command line itself: overrides, help, and what it costs to ask for it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from config.broken_case import GOOD

from pipeline_ops.cli.arguments import parse_overrides
from pipeline_ops.cli.main import COMMANDS
from pipeline_ops.errors import ConfigError, ExitCode


def test_an_override_is_read_as_yaml_reads_it():
    values = {"a": 3, "b.c": 0.001, "d": "a=b", "e": None, "f": ["a", 1], "g": "yes please"}
    texts = ["a=3", "b.c=1e-3", "d=a=b", "e=null", "f=[a, 1]", "g=yes please"]
    assert parse_overrides(texts) == values


@pytest.mark.parametrize("text", ["train.epochs", "=3", "train.epochs=[1"])
def test_an_override_that_is_none_is_refused_and_quoted(text):
    with pytest.raises(ConfigError) as error:
        parse_overrides([text])
    assert f"--set {text}" in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train.epochs=", "has no value. Write train.epochs=null for none"),
        ("train.epochs= ", "has no value"),
        ("preprocess.source.path=raw #1", "YAML drops the text behind a #. Put the value in quot"),
        ("description=#1", "YAML drops the text behind a #"),
        ("description='a' #b", "YAML drops the text behind a #"),
    ],
)
def test_an_override_whose_value_would_be_lost_is_refused(text, says):
    with pytest.raises(ConfigError) as error:
        parse_overrides([text])
    assert f"--set {text}: {says}" in str(error.value)


def test_a_number_sign_in_quotes_or_in_a_word_is_kept():
    found = parse_overrides(['a="raw #1"', "b=c#1", "c='#2'", "d=[e, 'f #3']"])
    assert found == {"a": "raw #1", "b": "c#1", "c": "#2", "d": ["e", "f #3"]}


def test_the_help_of_several_configs_has_no_type_of_python(command):
    text = command("validate", "--help")
    assert "  CONFIG ...  YAML files of pipelines" in text and "list[" not in text


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "\\xe4/one.yaml: ok"),
        ("utf-8", "\N{LATIN SMALL LETTER A WITH DIAERESIS}/one.yaml: ok"),
    ],
)
def test_an_output_without_the_characters_of_a_path_shows_their_codes(
    tmp_path, monkeypatch, encoding, shown
):
    folder = tmp_path / "\N{LATIN SMALL LETTER A WITH DIAERESIS}"
    (folder / "raw" / "cat").mkdir(parents=True)
    (folder / "raw" / "cat" / "1.png").touch()
    (folder / "one.yaml").write_text(GOOD.replace("pipeline: small", "pipeline: one"))
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    argv = [sys.executable, "-m", "pipeline_ops.cli.main", "validate", str(folder / "one.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "") and shown in done.stdout


def test_an_output_that_cannot_be_written_is_one_message():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline_ops.cli.main", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    message = "cannot write the output: No space left on device. Free disk space.\n"
    assert (done.returncode, done.stderr) == (ExitCode.RETRY, message)


def test_help_lists_every_command_and_imports_nothing_heavy():
    code = (
        "import sys; from pipeline_ops.cli.main import main\n"
        "main(['--help'])\n"
        "print(sorted({'airflow', 'tensorflow', 'keras', 'apache_beam', 'numpy', 'rich', "
        "'httpx', 'beam_jobs', 'pydantic'} & {*sys.modules}))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1] == "[]"
    some = "run ui validate explain models stages new preview import-od-api init"
    assert {*some.split()} <= {*re.findall(r"^  ([a-z-]+)\s", output, re.MULTILINE)}


@pytest.mark.parametrize("name", COMMANDS.commands)
def test_the_list_of_commands_has_the_first_line_of_the_help_of_each(command, name):
    listed = COMMANDS.commands[name].get_short_help_str()
    assert command(name, "--help").split("\n\n")[1].strip() == listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "Missing command"),
        ("rum", "No such command 'rum'. Did you mean 'run'?"),
        ("run", "Missing argument 'CONFIG'"),
        ("run a.yaml b.yaml", "unexpected extra argument(s) (b.yaml)"),
        ("run --fast a.yaml", "No such option: --fast"),
        ("models promote a.yaml one", "Invalid value for 'VERSION'"),
        ("tensorboard --port 70000", "less than or equal to 65535"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_usage(command, words, message):
    error = command(*words.split(), status=2)
    assert message in error
    assert error.startswith("Usage: trainyard") and "--help' for help." in error


def test_stages_lists_the_catalogue_with_parameters(command):
    lines = command("stages").splitlines()
    assert {
        "resize      Brings every image to one size, and its boxes along.",
        "    height: int, at least 1, at most 16384, required",
        "    channels: 1 | 3 = 3",
        "    mode: stretch | letterbox | crop = stretch",
        "    background: list of 3 int, at least 0, at most 255 = [255, 255, 255]",
        "    classes: list of str, at least 1 = null",
        "    rename: mapping of str to str = {}",
    } <= {*lines}


def test_one_stage_is_told_with_the_meaning_of_its_parameters(command):
    output = command("stages", "resize")
    assert (
        "    height: int, at least 1, at most 16384, required\n"
        "        Height of the resulting image, in pixels.\n"
    ) in output
    assert "encode" not in output


def test_an_unknown_stage_is_told_with_the_nearest(command):
    assert "the nearest valid name is 'resize'" in command("stages", "risize", status=78)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.pool=gpus", "train.pool"),
        ("train.retries=0", "train.retries"),
        ("tags=[a]", "tags"),
        ("notify=[{notifier: airflow.sdk.BaseNotifier, events: [failed]}]", "notify"),
        ("evaluate.approval={timeout_seconds: 5}", "evaluate.approval"),
        ("search={parameters: {train.seed: [1, 2]}}", "search"),
        ("schedule=0 3 * * *", "schedule.cron"),
        ("storage.root=/tmp", "storage.root"),
        ("export.model=other", "export.model"),
    ],
)
def test_what_is_the_same_for_all_runs_is_refused_for_a_single_run_before_airflow_starts(
    command, tmp_path, monkeypatch, config_file, override, key
):
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    reason = "pages, the orphan" if key[:7] in ("storage", "export.") else "Airflow reads it when"
    message = f"--set {key}: cannot be set for a single run: {reason}"
    assert message in command("run", config_file, "--set", override, status=ExitCode.CONFIG)
    assert not (tmp_path / "home").exists()
