"""The documentation: its examples work, its links lead somewhere, its commands exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from config_files import write_config
from editor_schema import find_problems
from job_chain import run_jobs
from typer.core import TyperGroup

from beam_jobs.io import raw
from beam_jobs.stages import check_stages
from beam_jobs.stages.decode import Decode
from pipeline_ops.card.page import CARD_PAGE
from pipeline_ops.cli.main import COMMANDS
from pipeline_ops.config.hosts import load_hosts
from pipeline_ops.config.model_catalogue import CATALOGUE
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.job.model_check import check_training, plan_training
from pipeline_ops.raw_data import limits

PAGES = [CODE_ROOT / "README.md", *sorted((CODE_ROOT / "docs").glob("*.md"))]
CONFIGS = CODE_ROOT / "configs"
MAX_README_LINES = 130
LANGUAGES = {"", "yaml", "python", "sh", "ini", "dockerfile", "toml"}


class Block(NamedTuple):
    """A fenced block of code. `line` is that of its fence."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def find_blocks(page: Path) -> list[Block]:
    found, lines = [], page.read_text().splitlines()
    fences = [n for n, line in enumerate(lines) if line.lstrip().startswith("```")]
    for start, end in zip(fences[::2], fences[1::2], strict=True):
        indent = len(lines[start]) - len(lines[start].lstrip())
        text = "\n".join(line[indent:] for line in lines[start + 1 : end])
        found.append(Block(page, start + 1, lines[start].strip()[3:], text))
    return found


BLOCKS = [block for page in PAGES for block in find_blocks(page)]
HOSTS_FILE = re.compile(r"# hosts/(\w+)\.yaml\b")
"""The first line of an example that is a hosts file. Other examples of the page name it."""


def in_language(language: str) -> Any:
    blocks = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", blocks, ids=str)


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = base.get(key)
        merged[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def test_the_readme_is_short():
    assert len((CODE_ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_each_block_has_a_known_language():
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_each_page_is_in_the_index():
    index = (CODE_ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in PAGES if page.parent.name == "docs" and page.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


@in_language("yaml")
def test_a_yaml_example_is_a_valid_pipeline(block, tmp_path, outside_place):
    """A part of a pipeline is merged into the example for its task, classification or detection."""
    shutil.copytree(CONFIGS / "hosts", tmp_path / "hosts")
    for other in BLOCKS:
        if other.page == block.page and (named := HOSTS_FILE.match(other.text)):
            (tmp_path / "hosts" / f"{named[1]}.yaml").write_text(other.text)
    if named := HOSTS_FILE.match(block.text):
        load_hosts(tmp_path / "hosts", named[1])
        return
    example = yaml.safe_load(block.text)
    assert isinstance(example, dict), "an example starts at the top level of the YAML"
    if "pipeline" not in example:
        is_detection = example.get("train", {}).get("model") == "retinanet"
        base = "digit_scenes.yaml" if is_detection else "digits.yaml"
        values = yaml.safe_load((CONFIGS / base).read_text())
        if "batch_size_per_replica" in example.get("train", {}):
            del values["train"]["global_batch_size"]  # it has the batch in another form
        example = merge(values, example)
    file = tmp_path / f"{example['pipeline']}.yaml"
    file.write_text(yaml.safe_dump(example, sort_keys=False))
    config = load_config(file)
    check_stages(config.preprocess, file)
    assert find_problems(file) == []


def command_lines(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line for line in words if line]


def parse_command_line(words: list[str]) -> None:
    """Parses the words as the command does, and runs nothing. Raises TyperException."""
    name, command, context = "trainyard", COMMANDS, None
    while command:
        context = command.make_context(name, words, parent=context)
        words = [*context._protected_args, *context.args]
        is_group = isinstance(context.command, TyperGroup)
        name, command, words = (
            context.command.resolve_command(context, words) if is_group else ("", None, [])
        )


@in_language("sh")
def test_a_command_exists_and_takes_these_arguments(block):
    for program, *arguments in command_lines(block):
        if Path(program).name == "trainyard":
            parse_command_line(arguments)
        elif program == "make":
            done = subprocess.run(
                ["make", "-n", *arguments], cwd=CODE_ROOT, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        else:
            assert Path(program).name in KNOWN_PROGRAMS, program


KNOWN_PROGRAMS = {
    *(
        "base64",
        "ls",
        "pip",
        "curl",
        "tensorflow_model_server",
        "cosign",
        "mv",
        "python",
        "ruff",
        "docker",
        "kubectl",
    )
}
"""Programs of others in examples. Other tests run those lines of the pages that matter."""


@pytest.mark.training
def test_callback_and_change_of_images_on_the_page_work_in_a_training(tmp_path, monkeypatch):
    names = {
        "def shade": "my_changes",
        "class StopWhenGood": "my_callbacks",
        "class ShowFilters": "my_content",
    }
    for start, name in names.items():
        [block] = [each for each in BLOCKS if start in each.text]
        (tmp_path / f"{name}.py").write_text(block.text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    callbacks = ["my_callbacks:StopWhenGood", "my_content:ShowFilters"]
    used = {"train__epochs": 20, "train__workers": 1, "train__callbacks": callbacks}
    used |= {"train__input__augment__own": "my_changes:shade"}
    write_digits(tmp_path / "raw")
    source = {"preprocess__source__path": str(tmp_path / "raw")}
    manifests = run_jobs(CONFIGS / "digits.yaml", tmp_path, "train", **used, **source)
    figures = read_manifest(manifests["train"]).figures
    assert figures["stopped_early"] and len(figures["history"]) < 10
    page = (Path(manifests["train"]).parent / CARD_PAGE).read_text()
    titles = ["First filters", "Loss by epoch", "Epochs"]
    assert sorted(titles, key=page.index) == ["Loss by epoch", "Epochs", "First filters"]


def test_the_function_of_own_data_on_the_page_can_be_trained_with(tmp_path):
    from pipeline_ops.training.own_dataset import check_own_dataset

    [block] = [b for b in BLOCKS if "def digits(split, index, count)" in b.text]
    images = np.arange(40 * 64).reshape(40, 8, 8).astype(np.uint8)
    np.savez(tmp_path / "digits.npz", x_train=images, y_train=np.arange(40) % 10)
    (tmp_path / "digits_of_the_page.py").write_text(block.text.replace("/data", str(tmp_path)))
    config = Train(model="dense", dataset="digits_of_the_page:digits", workers=2)
    check_own_dataset(config, (8, 8, 1), 10, tmp_path)


def test_the_data_set_of_the_page_is_read_in_a_notebook(dataset):
    [block] = [b for b in BLOCKS if b.page.name == "data-sets.md" and b.language == "python"]
    found: dict = {}
    exec(re.sub(r"(?m)^uri = .*$", f"uri = {dataset!r}", block.text), found)
    images, labels = zip(*found["dataset"].unbatch().as_numpy_iterator(), strict=True)
    assert len(images) == found["manifest"].figures["num_examples"]["train"]
    assert set(labels) == set(range(10)) and {image.shape for image in images} == {(16, 16, 1)}


def test_the_page_of_models_names_the_whole_catalogue():
    text = (CODE_ROOT / "docs" / "own-model.md").read_text()
    assert [name for name in CATALOGUE if f"`{name}`" not in text] == []


def test_the_sentence_about_batch_and_rate_is_that_of_the_example_above_it():
    [at] = [n for n, block in enumerate(BLOCKS) if "batch_size_per_replica: " in block.text]
    train = Train.model_validate({"model": "dense"} | yaml.safe_load(BLOCKS[at].text)["train"])
    assert train.batch_description == " ".join(BLOCKS[at + 1].text.split())


def test_the_address_of_weights_is_that_in_the_source_of_keras():
    """Read, and not imported: TensorFlow takes seconds."""
    [*_, package] = importlib.util.find_spec("keras").submodule_search_locations
    source = (Path(package) / "src" / "applications" / "resnet.py").read_text()
    [base] = re.findall(r'BASE_WEIGHTS_PATH = \(\n +"(.+)"\n\)', source)
    [name] = re.findall(r'"\{weights_name\}(_weights_.+notop\.h5)"', source)
    text = (CODE_ROOT / "docs" / "own-model.md").read_text()
    assert f"{base}resnet50{name}," in text
    assert 'cache_subdir="models"' in source and "`~/.keras/models/`" in text


@pytest.mark.parametrize(
    ("heading", "number"), [("What a model may do", 39), ("Steps of your own", 22)]
)
def test_each_sentence_on_what_a_model_may_do_has_its_tests(heading, number):
    page = (CODE_ROOT / "docs" / "own-model.md").read_text()
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.rpartition(" | ")[2] for line in section.splitlines() if line.startswith("| ")]
    tests = [row for row in rows if row != "test |"]
    assert len(tests) == number
    for row in tests:
        for file, names in re.findall(r"`([a-z_]+/[a-z_]+\.py)`: ((?:`[^`]+`(?:, )?)+)", row):
            code = (CODE_ROOT / "tests" / file).read_text()
            for name in re.findall(r"`([^`]+)`", names):
                assert re.search(rf"{re.escape(name)}\b|{re.escape(name)}:", code), (file, name)


def test_the_table_of_tutorials_counts_the_lines_that_changed():
    page = (CODE_ROOT / "docs" / "tutorials.md").read_text()
    rows = re.findall(r"^\| .+ \| (\d+) \|.*\[`(\w+)`\]", page, re.MULTILINE)
    modules = {file.stem: file for file in (CODE_ROOT / "tests" / "tutorials").glob("*.py")}
    found = {
        name: str(modules[name].read_text().count("# changed"))
        for name in modules.keys() - {"in_keras", "test_tutorials"}
    }
    assert {name: number for number, name in rows} == found


@pytest.mark.training
def test_model_and_step_of_the_page_pass_the_check(tmp_path):
    names = {"keras.optimizers.Lion": "my_compiled", "def train_step": "my_net"}
    for text, name in names.items():
        [block] = [b for b in BLOCKS if b.page.name == "own-model.md" and text in b.text]
        (tmp_path / f"{name}.py").write_text(block.text)
    check_example(tmp_path, {"model": "my_compiled:build", "workers": 2})
    step = {"step": "my_net:train_step", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    check_example(tmp_path, {"model": "digits_cnn", "workers": 2} | step)


def check_example(folder: Path, options: dict[str, Any]) -> None:
    changes = {"reduce_learning_rate": None} | options
    file = write_config(folder, {f"train.{key}": value for key, value in changes.items()})
    training = plan_training(load_config(file), sys.executable)
    check_training(training, "classification", (12, 12, 1), 10)


def test_each_benchmark_is_in_the_table_and_make_bench_runs_the_first_ones():
    page = (CODE_ROOT / "CONTRIBUTING.md").read_text().partition("## Benchmarks")[2]
    named = re.findall(r"`(\w+\.py)`", page.partition("\n## ")[0])
    assert sorted(named) == sorted(file.name for file in (CODE_ROOT / "tests/bench").glob("*.py"))
    rows = re.findall(r"^\| `(\w+\.py)`", page, re.M)
    run = re.findall(r"tests/bench/(\w+\.py)", (CODE_ROOT / "Makefile").read_text())
    assert rows[: len(run)] == run


def test_the_page_of_sources_has_the_limits_of_the_readers():
    page = (CODE_ROOT / "docs" / "data-sources.md").read_text()
    table = page.partition("## How much may a file cost?")[2].partition("\n## ")[0]
    numbers = (
        f"{limits.MAX_ENTRIES:,} images, {limits.MAX_REJECTS:,} rejects, {limits.MAX_DEPTH} nested",
        f"{limits.MAX_IMAGE_BYTES >> 20} MiB, and {Decode().max_megapixels:g} megapixels",
        f"{limits.MAX_SAMPLE_ANNOTATION_BYTES >> 20} MiB for one image",
        f"(LabelMe: {limits.MAX_LABELME_BYTES >> 20})",
        f"{limits.MAX_ANNOTATION_BYTES >> 30} GiB for a file of all images",
        f"(CVAT: {limits.MAX_CVAT_BYTES >> 20} MiB, and {limits.MAX_XML_ELEMENT_BYTES >> 20} MiB",
        f"{limits.MAX_TEXT_CHARACTERS:,} characters",
        f"a record of TFRecord | {limits.MAX_RECORD_BYTES >> 30} GiB",
        f"a row group of Parquet | {limits.MAX_ROW_GROUP_BYTES >> 30} GiB",
        f"{limits.MAX_VALUES_PER_BYTE} numbers or texts for each byte",
        f"{limits.MIN_VALUES:,}), and {limits.MAX_BATCH_VALUES:,} in {raw._BATCH_ROWS} rows",
        f"{limits.MAX_ARRAY_ROW_BYTES >> 20} MiB in a row, "
        f"{limits.MAX_PACKED_ARRAY_BYTES >> 30} GiB if it is compressed",
        f"{limits.MAX_SAMPLE_MEMBERS:,} members in a sample",
        f"{limits.MAX_TAR_HEADER_BYTES:,} bytes in an extended header",
    )
    assert [number for number in numbers if number not in table] == []


def test_the_page_on_the_object_detection_api_lists_the_parameters_of_retinanet():
    import dataclasses
    import inspect

    from pipeline_ops.models.anchor_head import AnchorHead
    from pipeline_ops.models.retinanet import build

    page = (CODE_ROOT / "docs" / "object-detection-api.md").read_text()
    table = page.partition("## Parameters of `retinanet`")[2].partition("\n\nA network")[0]
    listed = {}
    for line in re.findall(r"^\| `.*$", table, re.M):
        names, defaults = line.split("|")[1:3]
        values = re.findall(r"\[.*?\]|[^,\s]+", defaults)
        listed |= dict(zip(re.findall(r"`(\w+)`", names), values, strict=True))
    expected = {
        name: each.default
        for name, each in inspect.signature(build).parameters.items()
        if name not in ("image_shape", "num_classes", "head_parameters")
    }
    expected |= {
        each.name: each.default
        for each in dataclasses.fields(AnchorHead)
        if each.name not in ("image_size", "num_classes")
    }

    def show(value):
        if isinstance(value, bool) or value is None:
            return {None: "none"}.get(value, str(value).lower())
        return str(list(value)) if isinstance(value, tuple) else str(value)

    assert listed == {name: show(value) for name, value in expected.items()}
