"""`init`: a look at a folder becomes a config that validates and runs, or a message that helps."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from editor_schema import find_problems
from job_chain import run_jobs

from pipeline_ops.cli.commands.init import make_name
from pipeline_ops.cli.commands.schema import FILE_NAME
from pipeline_ops.cli.main import main
from pipeline_ops.config.train import Train
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.models import build_model

REPOSITORY = Path(__file__).resolve().parents[2]
BCCD = Path(os.environ.get("TRAINYARD_BCCD", REPOSITORY.parent / "shared" / "data" / "bccd"))
SKILL = {"min_skill": 0.1, "max_regression": 0.01}
BOX = {"xmin": 4, "ymin": 5, "xmax": 24, "ymax": 25}


class Data:
    """A folder `data` beside a working folder `work`, in which the command runs."""

    def __init__(self, folder: Path, capsys):
        self.folder, self.work, self._capsys = folder / "data", folder / "work", capsys
        self.folder.mkdir()
        self.work.mkdir()

    def add(self, name: str, content: str | bytes | dict | list) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(content) if isinstance(content, dict | list) else content
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def add_images(self, folder: str, number: int, height: int = 90, width: int = 120) -> list[str]:
        """Adds random colour images, JPEG. Returns their names in the folder."""
        names = [f"{index:03d}.jpg" for index in range(number)]
        for index, name in enumerate(names):
            seed = [index, *folder.encode()]
            image = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
            large = cv2.resize(image, (width, height))
            self.add(f"{folder}/{name}", cv2.imencode(".jpg", large)[1].tobytes())
        return names

    def add_pets(self, number: int = 20, height: int = 90, width: int = 120) -> None:
        for name in ("cat", "dog"):
            self.add_images(name, number, height, width)

    def init(self, *words: str, path: str | Path = "../data") -> tuple[int, str, str]:
        """Runs the command without a measurement. Returns its exit status, output and errors."""
        status = main(["init", str(path), "--no-measure", *words])
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err

    def write(self, *words: str, **more) -> tuple[dict, str]:
        """The config that the command writes, which validates, and the command's output."""
        status, output, errors = self.init(*words, **more)
        assert status == 0, errors
        [file] = self.configs
        assert main(["validate", str(file)]) == 0, self._capsys.readouterr().err
        assert find_problems(file) == []
        schema = REPOSITORY / "configs" / FILE_NAME
        assert (file.parent / FILE_NAME).read_text() == schema.read_text()
        assert file.read_text().startswith(f"# yaml-language-server: $schema={FILE_NAME}\n")
        self._capsys.readouterr()
        return yaml.safe_load(file.read_text()), output

    def fail(self, *words: str, status: int = 65, **more) -> str:
        """The message of the command, which writes nothing."""
        before = self.configs
        found, _, errors = self.init(*words, **more)
        assert found == status, errors
        assert self.configs == before
        return errors

    @property
    def configs(self) -> list[Path]:
        return sorted(self.work.rglob("*.yaml"))


@pytest.fixture
def data(tmp_path, monkeypatch, capsys) -> Data:
    data = Data(tmp_path, capsys)
    monkeypatch.chdir(data.work)
    return data


def coco(names: list[str], first_id: int = 0) -> dict:
    """A COCO file with a box of a cat in every second image and of a dog in the others."""
    images = [
        {"id": first_id + index, "file_name": name, "width": 120, "height": 90}
        for index, name in enumerate(names)
    ]
    return {
        "images": images,
        "annotations": [
            {"image_id": image["id"], "category_id": image["id"] % 2, "bbox": [4, 5, 20, 20]}
            for image in images
        ],
        "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
    }


def voc(label: str) -> str:
    corners = "".join(f"<{name}>{value}</{name}>" for name, value in BOX.items())
    named = f"<name>{label}</name><bndbox>{corners}</bndbox>"
    return f"<annotation><object>{named}</object></annotation>"


def add_voc(data: Data, number: int = 40) -> None:
    for index, name in enumerate(data.add_images("JPEGImages", number)):
        data.add(f"Annotations/{name[:-4]}.xml", voc("dog" if index % 2 else "cat"))


# Kinds of data


def test_class_folders_become_a_config_that_runs_through_the_preprocess_job(data, tmp_path):
    data.add("README.md", "about")
    for name, number in (("cat", 30), ("dog", 20), ("owl", 25)):
        data.add_images(f"pictures/{name}", number)
    config, output = data.write()
    assert config["preprocess"]["source"] == {"type": "image_folder", "path": "../../data/pictures"}
    assert config["pipeline"] == config["export"]["model"] == "pictures"
    assert "3 class folders with 30, 20 and 25 images" in output
    assert "3: cat, dog, owl" in output
    assert config["preprocess"]["stages"] == [
        {"decode": {"channels": 3}},
        {"resize": {"height": 96, "width": 96}},
        {"encode": {"format": "png"}},
    ]
    assert config["evaluate"]["gate"] == [SKILL | {"metric": "accuracy"}]
    manifest = run_jobs(data.configs[0], tmp_path, "preprocess")["preprocess"]
    figures = read_manifest(manifest).figures
    assert figures["class_names"] == ["cat", "dog", "owl"]
    assert figures["image_shape"] == [96, 96, 3]
    text = data.configs[0].read_text()
    numbers = ", ".join(f"{n} {split}" for split, n in figures["num_examples"].items())
    assert f"# {numbers}; stratify" in text  # the job divides the images as the comment says


def test_small_equal_grey_images_keep_their_size_and_get_a_small_network(data):
    for name, level in (("a", 0), ("b", 200)):
        for index in range(20):
            image = np.full((28, 28), level + index, np.uint8)
            data.add(f"{name}/{index}.png", cv2.imencode(".png", image)[1].tobytes())
    config, _ = data.write()
    assert config["preprocess"]["stages"] == [
        {"decode": {"channels": 1}},
        {"resize": {"height": 28, "width": 28}},
        {"encode": {"format": "png"}},
    ]
    assert config["train"]["model"] == "digits_cnn"


@pytest.mark.stores
def test_the_training_is_measured_and_fits_the_minutes(data, capsys):
    data.add_pets(20, 40, 40)
    assert main(["init", "../data", "--minutes", "2"]) == 0
    output, text = capsys.readouterr().out, data.configs[0].read_text()
    shown = r"time +(about .* on this machine \(\d+ cores\): (\d+) epochs of (\S+) s, .*)"
    found = re.search(shown, output)
    assert found, output
    assert f"# Time      {found[1]}\n" in text
    train = yaml.safe_load(text)["train"]
    assert train["epochs"] == int(found[2])
    assert f"{found[3]} s on this machine" in text
    assert main(["validate", str(data.configs[0])]) == 0


@pytest.mark.stores
def test_weights_are_a_warm_start_whose_new_layers_learn_first(data):
    data.add_pets()
    assert "there is no such file" in data.fail("--weights", "old.weights.h5", status=78)
    train = Train(model="compact_cnn", model_parameters={"width": 24}, epochs=1)
    build_model(train, (96, 96, 3), 5, data.work, False).save_weights(data.work / "old.weights.h5")
    config, _ = data.write("--weights", "old.weights.h5")
    assert config["train"]["warm_start"] == "../old.weights.h5"
    assert config["train"]["freeze_epochs"] == 2


@pytest.mark.stores
def test_weights_that_do_not_fit_are_refused_before_the_config_is_written(data):
    data.add_pets()
    np.savez(data.work / "other.npz", np.zeros((3, 3)))
    error = data.fail("--weights", "other.npz", status=78)
    assert "other.npz fits less than half of the model, 0% of the parameters" in error
    (data.work / "models" / "pets" / "2").mkdir(parents=True)
    (data.work / "models" / "pets" / "2" / "saved_model.pb").touch()
    error = data.fail("--weights", "models/pets", status=78)
    assert "models/pets has no saved_model.pb. Give " in error
    assert "models/pets/2.\n" in error


def test_the_gate_for_a_rare_class_is_not_its_accuracy(data):
    data.add_images("fine", 45)
    data.add_images("broken", 15)
    config, _ = data.write()
    assert config["evaluate"]["gate"][0]["metric"] == "macro_recall"
    assert config["train"]["best_checkpoint"]["monitor"] == "validation_macro_recall"
    assert "because one has 75% of the images" in data.configs[0].read_text()


def test_pascal_voc_becomes_a_config_that_runs_through_the_preprocess_job(data, tmp_path):
    add_voc(data)
    config, output = data.write()
    assert config["preprocess"]["source"] == {"type": "voc", "path": "../../data"}
    assert config["train"]["model"] == "center_detector"
    assert config["evaluate"]["gate"] == [SKILL | {"metric": "map_50"}]
    assert "40 XML files in Annotations" in output
    manifest = run_jobs(data.configs[0], tmp_path, "preprocess")["preprocess"]
    figures = read_manifest(manifest).figures
    assert (figures["task"], figures["class_names"]) == ("detection", ["cat", "dog"])


def test_images_in_no_list_of_voc_are_left_out(data):
    add_voc(data)
    for name, numbers in (("train", range(20)), ("val", range(20, 30)), ("test", range(30, 38))):
        data.add(f"ImageSets/Main/{name}.txt", "".join(f"{n:03d}\n" for n in numbers))
    config, output = data.write()
    assert config["preprocess"]["source"]["unlisted"] == "ignore"
    assert "2 of them are in none of the lists" in output
    assert "rejected" not in output
    comment = "not used: the data has splits (20 train, 10 validation, 8 test)"
    assert comment in data.configs[0].read_text()


@pytest.mark.skipif(not BCCD.is_dir(), reason="the BCCD data set is not there")
@pytest.mark.stores
def test_bccd_is_recognised_and_its_two_slips_are_named(data, tmp_path):
    config, output = data.write(path=BCCD)
    assert config["preprocess"]["source"] == {"type": "voc", "path": str(BCCD)}
    assert "3: Platelets, RBC, WBC" in output
    assert "205 train, 87 validation, 72 test" in output
    assert "2 of 366 entries cannot be used: 2 box_empty (such as JPEGImages/Blood" in output
    # Two are seen, and 100 of 364 images are decoded.
    assert config["preprocess"]["rejects"] == {"max_count": 5}
    manifest = run_jobs(data.configs[0], tmp_path, "preprocess")["preprocess"]
    assert read_manifest(manifest).figures["image_shape"] == [192, 256, 3]


def test_a_coco_file_beside_its_images_can_be_named_itself(data):
    data.add("_annotations.coco.json", coco([f"images/{n}" for n in data.add_images("images", 30)]))
    config, output = data.write(path="../data/_annotations.coco.json")
    assert "2: cat, dog" in output
    assert config["preprocess"]["source"]["parts"] == [{"annotations": "_annotations.coco.json"}]
    assert config["pipeline"] == "data"


def test_a_csv_with_labels_wins_over_class_folders(data):
    rows = [f"{name}/{file},{name}" for name in "ab" for file in data.add_images(name, 20)]
    data.add("labels.csv", "\n".join(["path,label", *rows, "gone.jpg,a"]))
    config, output = data.write()
    source = {"type": "csv", "path": "../../data", "manifest": "labels.csv"}
    assert config["preprocess"]["source"] == source | {"task": "classification"}
    assert config["preprocess"]["rejects"] == {"max_count": 1}
    assert "1 of 41 entries cannot be used: 1 missing_image (such as gone.jpg" in output


@pytest.mark.stores
def test_shards_of_ours_are_recognised_as_tfrecords_with_their_splits(data, tmp_path):
    add_voc(data)
    data.write("--output", "voc.yaml")
    manifest = run_jobs(data.work / "voc.yaml", tmp_path, "preprocess")["preprocess"]
    (data.work / "voc.yaml").unlink()
    config, _ = data.write("--output", "again.yaml", path=Path(manifest).parent)
    source = config["preprocess"]["source"]
    assert (source["type"], source["task"]) == ("tfrecord", "detection")
    assert [part["split"] for part in source["parts"]] == ["test", "train", "validation"]
    assert source["parts"][1]["files"] == "train-?????-of-00008.tfrecord"


def test_tar_shards_become_a_config_that_runs_through_the_preprocess_job(data, tmp_path):
    for split in ("train", "val"):
        names = data.add_images(f"images/{split}", 40)
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for index, name in enumerate(names):
                tar.add(data.folder / "images" / split / name, f"{split}{name}")
                info = tarfile.TarInfo(f"{split}{name[:-4]}.cls")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"%d" % (index % 2)))
        data.add(f"shards/{split}-000.tar", file.getvalue())
    config, output = data.write(path="../data/shards")
    source = config["preprocess"]["source"]
    assert (source["type"], source["task"]) == ("webdataset", "classification")
    assert [part["split"] for part in source["parts"]] == ["train", "validation"]
    assert "2 tar files of samples with the members cls, jpg" in output
    comment = "the data has train and validation; test is cut from train"
    assert comment in data.configs[0].read_text()
    manifest = run_jobs(data.configs[0], tmp_path, "preprocess")["preprocess"]
    assert read_manifest(manifest).figures["class_names"] == ["0", "1"]


# What is none of these


def test_an_empty_folder_is_told(data):
    assert data.fail() == (
        f"{data.folder}: there are no files. Name a folder with images and their labels or boxes.\n"
    )


def test_a_folder_of_texts_is_told_with_what_it_holds_and_what_is_needed(data):
    for name in ("a.txt", "b/c.txt", "d.md"):
        data.add(name, "words")
    errors = data.fail()
    assert errors.startswith(
        f"{data.folder}: this is no data set that can be used as it is. "
        "It has 3 files (2 .txt, 1 .md), for example a.txt, b/c.txt, d.md.\n"
    )
    assert "  voc           images, and XML files of Pascal VOC with the same names" in errors
    assert "near" not in errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "filename,class\na.jpg,cat\n", "none of its images (a.jpg) is below this folder"),
        ("x.md", "words", "What comes near:\n  image_folder  "),
        ("x.jsonl", '{"file": "a.jpg"}\n', "the lines of x.jsonl have the keys file"),
        ("x.json", coco(["gone.jpg"]), "none of its images (gone.jpg) is below this folder"),
        ("x.tar.gz", "", "x.tar.gz is compressed. Use gunzip first"),
        (
            "x.json",
            '{"images": [' + "1" * 5000,
            "x.json is not JSON: Exceeds the limit",
        ),
        ("x.csv", "a.jpg," + "1" * 200_000, "x.csv cannot be read: field larger than field limit"),
        ("x.tfrecord", "no records", "the file ends inside the head of the record"),
    ],
)
def test_what_comes_near_is_told_with_the_cure(data, name, content, message):
    data.add_images(".", 1)
    data.add(name, content)
    assert message in data.fail()


def test_two_kinds_that_fit_equally_are_both_told_and_one_can_be_chosen(data):
    add_voc(data)
    data.add("all.json", coco([f"JPEGImages/{n:03d}.jpg" for n in range(40)]))
    errors = data.fail()
    assert f"{data.folder}: 2 kinds of data fit equally." in errors
    assert "  voc           40 XML files" in errors and "  coco          all.json is" in errors
    assert "Choose one of them with --type." in errors
    assert data.write("--type", "coco")[0]["preprocess"]["source"]["type"] == "coco"


def test_two_manifests_are_told_apart_by_naming_one(data):
    images = data.add_images(".", 30)
    rows = [f"{name},{'cat' if n % 2 else 'dog'}" for n, name in enumerate(images)]
    for name in ("one.csv", "two.csv"):
        data.add(name, "\n".join(["path,label", *rows]))
    assert "Name the folder or the file that you mean." in data.fail()
    assert data.write(path="../data/two.csv")[0]["preprocess"]["source"]["manifest"] == "two.csv"


def test_too_few_images_for_three_splits_are_told(data):
    data.add_pets(1)
    assert "the validation split has no example" in data.fail()


def test_many_classes_of_few_images_are_divided_by_class(data):
    """By their hashes alone, some of 600 classes would have no training image."""
    image = cv2.imencode(".png", np.zeros((9, 12, 3), np.uint8))[1].tobytes()
    for index in range(1200):
        data.add(f"species {index // 2}/{index}.png", image)
    config, output = data.write()
    assert config["preprocess"]["split"]["stratify"]
    assert "960 train, 120 validation, 120 test" in output
    assert "no test image of species " in output and " and 477 more classes" in output


def test_the_only_image_of_a_class_is_for_training_which_is_told(data):
    data.add_pets()
    data.add_images("axolotl", 1)
    _, output = data.write()
    assert "no test image of axolotl (the first image of a class is for training), so" in output


def test_a_class_that_only_the_test_folder_has_is_told(data):
    for folder in ("train/cat", "train/dog", "test_set/cat", "test_set/unknown"):
        data.add_images(folder, 10)
    _, output = data.write()
    assert "No training example of unknown, so the model never learns to find it" in output


def test_files_that_are_no_images_are_told_and_counted(data):
    data.add_pets()
    data.add("cat/Thumbs.db", "none")
    data.add("dog/broken.jpg", b"\xff\xd8\xff none")
    config, output = data.write()
    assert "cat/Thumbs.db: not_image" in output
    assert "dog/broken.jpg: " in output
    assert config["preprocess"]["rejects"] == {"max_count": 2}


def test_files_of_sixteen_bits_are_decoded_by_the_bits_that_they_use(data):
    for index in range(40):
        pixels = np.random.default_rng(index).integers(0, 4096, (40, 40), np.uint16)
        data.add(f"{'ab'[index % 2]}/{index}.png", cv2.imencode(".png", pixels)[1].tobytes())
    config, _ = data.write()
    assert config["preprocess"]["stages"][0] == {"decode": {"channels": 1, "bits": 12}}


def test_the_entries_that_cannot_be_used_are_told_if_the_others_are_too_few(data):
    images = data.add_images("p", 40)
    rows = [f"p/{name},{'Birnen' if name < '020' else 'Äpfel'}" for name in images]
    data.add("labels.csv", "\n".join(["path,label", *rows]).encode("latin-1"))
    error = data.fail()
    assert "a classifier needs two classes or more, found only Birnen." in error
    assert "20 of 40 entries cannot be used: 20 no_label" in error
    assert "is not the name of a class. Save the file as UTF-8" in error


# Names, places, hostile content


def test_nothing_is_overwritten_without_force(data):
    data.add_pets()
    data.write()
    [file] = data.configs
    file.write_text("mine")
    assert "data.yaml: already exists. Add --force" in data.fail(status=78)
    assert file.read_text() == "mine"
    data.write("--force")


def test_a_missing_path_and_an_unknown_type_are_told(data):
    assert "no such file" in data.fail(path="nowhere").lower()
    error = data.fail("--type", "pascal", status=78)
    assert "--type pascal: must be one of image_folder, voc" in error


def test_the_path_of_the_source_is_relative_if_the_given_one_is(data):
    data.add_pets()
    config, _ = data.write("--output", "deep/er/x.yaml", path=data.folder)
    assert config["preprocess"]["source"]["path"] == str(data.folder)
    config, _ = data.write("--output", "deep/er/x.yaml", "--force")
    assert config["preprocess"]["source"]["path"] == "../../../data"


def test_names_cannot_add_lines_to_the_config_or_move_the_cursor(data):
    hostile = "a\nexport: {model: other} # \x1b[2J"
    for name in (hostile, "b"):
        data.add_images(name, 20)
    config, output = data.write()
    assert config["export"] == {"model": "data"}
    assert "\x1b" not in output + data.configs[0].read_text()


def test_a_folder_whose_name_a_config_cannot_hold_is_told(data):
    for name in ("cat", "dog"):
        data.add_images(f"{{start}}/{name}", 20)
    assert "Rename the folder" in data.fail()


def test_a_link_out_of_the_folder_is_refused(data, tmp_path):
    data.add_images("cat", 2)
    (tmp_path / "outside").mkdir()
    (data.folder / "dog").symlink_to(tmp_path / "outside")
    assert "out of the folder of raw data" in data.fail()


@pytest.mark.parametrize(
    ("folder", "name"),
    [("My Photos (2)", "my_photos_2"), ("花", "my_data"), ("x" * 99, "x" * 63), ("-7-", "7")],
)
def test_a_folder_gives_a_valid_name(folder, name):
    assert make_name(folder) == name


def crowd_coco(names: list[str], is_crowd, boxes=lambda index: 1) -> dict:
    """A COCO file with some boxes of "cat" and of "Cat" in each image, and some of them crowds."""
    content = coco(names)
    content["categories"] = [{"id": 0, "name": "cat"}, {"id": 1, "name": "Cat"}]
    content["annotations"] = [
        each | {"iscrowd": int(is_crowd(each["image_id"])), "bbox": [4, 5 + place, 20, 20]}
        for each in content["annotations"]
        for place in range(boxes(each["image_id"]))
    ]
    return content


@pytest.mark.stores
def test_what_annotations_lack_is_told_with_its_numbers(data, capsys):
    names = [f"images/{name}" for name in data.add_images("images", 40)]
    content = crowd_coco(names, lambda index: index in (0, 1), lambda index: int(index < 30))
    data.add("all.json", content)
    _, output = data.write()
    [file] = data.configs
    assert main(["validate", "--deep", str(file)]) == 0
    for text in (output, capsys.readouterr().out):
        assert "Cat (14) and cat (14) differ in case only\n" in text
        assert re.search(r"look at +10 of 40 images have no boxes \(train \d+ of \d+", text)
        assert "2 of 30 boxes are crowds (iscrowd: 1), which a detector does not learn from" in text


def test_boxes_that_are_all_crowds_make_no_config(data):
    names = [f"images/{name}" for name in data.add_images("images", 24)]
    data.add("all.json", crowd_coco(names, lambda _: True))
    assert "24 of 24 boxes are crowds (iscrowd: 1), which a detector does not learn" in data.fail()


@pytest.mark.stores
def test_very_many_boxes_are_told_and_a_lower_limit_is_a_warning(data, capsys):
    names = [f"images/{name}" for name in data.add_images("images", 30)]
    boxes = {3: 60, 8: 50}
    data.add("all.json", crowd_coco(names, lambda _: False, lambda index: boxes.get(index, 1)))
    assert "train.model_parameters.max_detections" not in data.write()[1]  # 60 are usual
    [file] = data.configs
    limit = "train.model_parameters.max_detections"
    assert main(["validate", "--deep", str(file), "--set", f"{limit}=50"]) == 0
    assert f"images/003.jpg has 60 boxes, and {limit} is 50: the model" in capsys.readouterr().out
