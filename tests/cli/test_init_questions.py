"""`init` asks where two readings fit, and recognises data of a source of the user's own."""

from __future__ import annotations

import importlib
import io
import json
import shlex
import sys

import pytest
import yaml
from PIL import Image

from pipeline_ops.cli.main import main

BADGES = '''"""One text file of badges beside each picture."""

from beam_jobs.sources.folder_view import SourceMatch
from beam_jobs.sources.source import Box, SourceEntry, parameters


@parameters
class Badges:
    colour: str = "red"


def recognise(view):
    files = view.list_candidates(".badge")
    if files:
        colour = view.read_start(files[0]).split()[0].decode()
        yield SourceMatch("acme_badges", f"{len(files)} badges", {"colour": colour})


def badges(files, parameters: Badges):
    for path in files:
        if path.endswith(".badge"):
            colour, label = files.read_text(path).split()
            assert colour == parameters.colour
            yield SourceEntry(path.removesuffix(".badge") + ".jpg", label)
'''


def draw(orientation: int = 1, seed: int = 0) -> bytes:
    image, file = Image.new("RGB", (64, 48), (seed, 90, 200)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(file, "JPEG", exif=exif)
    return file.getvalue()


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """An installed package that publishes a source with a recogniser."""
    folder = tmp_path / "site"
    (folder / "acme_badges").mkdir(parents=True)
    (folder / "acme_badges" / "__init__.py").write_text("")
    (folder / "acme_badges" / "source.py").write_text(BADGES)
    info = folder / "acme_badges-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_badges\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("acme_badges\n")
    (info / "entry_points.txt").write_text(
        "[trainyard.sources]\nacme_badges = acme_badges.source:badges\n"
    )
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield folder
    for module in [name for name in sys.modules if name.startswith("acme_badges")]:
        del sys.modules[module]


def test_data_of_a_source_of_the_users_own_are_recognised_by_its_entry_point(
    acme, tmp_path, capsys
):
    data = tmp_path / "data"
    data.mkdir()
    for index in range(24):
        (data / f"{index}.jpg").write_bytes(draw(seed=9 * index))
        (data / f"{index}.badge").write_text(f"blue {'cat' if index % 2 else 'dog'}\n")
    config = tmp_path / "badges.yaml"
    assert main(["init", str(data), "--output", str(config), "--no-measure"]) == 0
    assert "acme_badges (certain): 24 badges" in capsys.readouterr().out
    source = yaml.safe_load(config.read_text())["preprocess"]["source"]
    assert (source["type"], source["colour"]) == ("acme_badges", "blue")
    assert main(["validate", "--deep", str(config)]) == 0


def test_an_installed_source_that_cannot_be_imported_is_named(acme, tmp_path, capsys):
    (acme / "acme_badges" / "source.py").write_text("import no_such_module\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.badge").write_text("blue cat")
    assert main(["init", str(tmp_path / "data"), "--output", str(tmp_path / "a.yaml")]) == 65
    assert (
        "the source acme_badges of the installed package acme_badges cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    ) in capsys.readouterr().err


def test_the_picture_that_boxes_were_drawn_on_is_asked_where_exif_turns_it(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    lines = []
    for index in range(24):
        (data / f"{index}.jpg").write_bytes(draw(orientation=3 if index < 10 else 1, seed=index))
        box = {"xmin": 1 + index, "ymin": 2, "xmax": 40, "ymax": 30, "label": "cat"}
        size = {"width": 64, "height": 48}
        lines.append(json.dumps({"path": f"{index}.jpg", "boxes": [box], **size}))
    (data / "boxes.jsonl").write_text("\n".join(lines))
    config = str(tmp_path / "boxes.yaml")
    command = ["init", str(data), "--output", config, "--no-measure"]
    assert main(command) == 65
    errors = capsys.readouterr().err
    assert "10 images of 24 are turned by EXIF" in errors
    for answer in ("upright", "stored"):
        key = f"boxes.drawn_on={answer}"
        assert f"  trainyard init {data} --type jsonl --source {key}\n" in errors
        assert main([*command, "--force", "--source", key]) == 0
        with open(config) as file:
            assert yaml.safe_load(file)["preprocess"]["source"]["boxes"] == {"drawn_on": answer}


@pytest.mark.parametrize(
    "text, fault",
    [
        ("class_folder", "expected KEY=VALUE, for example columns.label=breed"),
        ("a=[", "--source a=[: not valid YAML"),
        ("no_such=1", "no_such"),
    ],
)
def test_a_wrong_key_of_the_source_is_told(text, fault, tmp_path, capsys):
    for index in range(24):
        file = tmp_path / "data" / ("cat" if index % 2 else "dog") / f"{index}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(draw(seed=9 * index))
    words = ["init", str(tmp_path / "data"), "--output", str(tmp_path / "a.yaml"), "--source", text]
    assert main([*words, "--no-measure"]) != 0
    assert fault in capsys.readouterr().err


def write(folder, table: str, number: int = 24) -> list[str]:
    (folder / "images").mkdir(parents=True)
    for index in range(number):
        (folder / "images" / f"{index}.jpg").write_bytes(draw(seed=9 * index))
    (folder / "a.csv").write_text(table)
    return ["init", str(folder), "--output", str(folder.parent / "a.yaml"), "--no-measure"]


def test_the_number_of_a_row_is_no_name_of_an_image(tmp_path, capsys):
    rows = [f"{i},{(i * 7) % 24}.jpg,{'cat' if i % 2 else 'dog'}" for i in range(24)]
    command = write(tmp_path / "data", "\n".join([",filename,label", *rows]))
    assert main(command) == 0
    with open(tmp_path / "a.yaml") as file:
        source = yaml.safe_load(file)["preprocess"]["source"]
    assert source["columns"] == {"path": "filename"}


def test_an_answer_is_kept_in_the_next_question_and_can_be_pasted(tmp_path, capsys):
    rows = [f"{i}.jpg,{'ab'[i % 2]},{'cd'[i % 3 % 2]},{i + 1} {i + 2} 30 40" for i in range(24)]
    table = "\n".join(["file,the kind,other,where", *rows])
    folder = tmp_path / "my data"
    command = write(folder, table)
    assert main(command) == 65
    words = ["trainyard", "init", str(folder), "--type", "csv", "--source"]
    first = shlex.join([*words, "columns.label=the kind"])
    assert first in capsys.readouterr().err
    assert main([*command, "--source", "columns.label=the kind"]) == 65
    both = shlex.join([*words, "columns.label=the kind", "--source", "task=classification"])
    assert both in capsys.readouterr().err
    assert main([*command, *shlex.split(both)[3:]]) == 0


@pytest.mark.parametrize(
    "boxes, fault",
    [
        ([[0.1, 0.2, 0.3, 0.2]], "box_fraction"),
        ([[60, 40, 30, 30]], "box_outside"),
    ],
)
def test_a_file_whose_boxes_are_something_else_is_refused(boxes, fault, tmp_path, capsys):
    folder = tmp_path / "data"
    command = write(folder, "")
    (folder / "a.csv").unlink()
    content = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(24)],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"image_id": i, "category_id": 1, "bbox": box} for i in range(24) for box in boxes
        ],
    }
    (folder / "a.json").write_text(json.dumps(content))
    assert main(command) == 65
    assert fault in capsys.readouterr().err


def test_masks_beside_images_are_no_examples(tmp_path, capsys):
    for index in range(24):
        folder = tmp_path / "data" / ("cat" if index % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        for name in (f"{index}.jpg", f"{index}_mask.jpg"):
            (folder / name).write_bytes(draw(seed=index))
    assert main(["init", str(tmp_path / "data"), "--output", str(tmp_path / "a.yaml")]) == 65
    assert "are masks of others. Move them away" in capsys.readouterr().err
