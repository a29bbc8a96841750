"""Broken pipeline configs, one per mistake: the content of the file, the line that the message must
name, and words of its advice."""

from __future__ import annotations

from pathlib import Path

from config.broken_case import GOOD, Broken, make_file, replace
from config.broken_syntax import SYNTAX
from config.broken_values import SCHEDULES, VALUES
from config.cases import parse_cases


def _unreadable(file: Path) -> None:
    """A file without the right to read. Root may read it all the same,
    so its content is broken, too."""
    file.write_text("[")
    file.chmod(0)


_MEANINGS = r"""
typo:   epochs: 3\n ->   epochs: 3\n  learnin_rate: 1\n
    9: train.learnin_rate: unknown key
typo_in_section:   epochs: 3\n ->   epochs: 3\n  optimizer: {learnin_rate: 1}\n
    9: train.optimizer.learnin_rate: unknown key | 'learning_rate'
key_of_optimizer:   epochs: 3\n ->   epochs: 3\n  learning_rate: 0.1\n
    9: train.learning_rate: unknown key; did you mean train.optimizer.learning_rate?
key_of_train: pipeline: small\n -> pipeline: small\nepochs: 3\n
    2: epochs: unknown key; did you mean train.epochs?
zoom:   epochs: 3\n ->   epochs: 3\n  input: {augment: {RandomZoom: 0.2}}\n
    9: train.input.augment.RandomZoom: unknown key; write train.input.augment: {scale: {min:
clipnorm:   epochs: 3\n ->   epochs: 3\n  clipnorm: 1.0\n
    9: train.clipnorm: unknown key; write train.optimizer: {clip: {norm: 1.0}}
batch_size: pipeline: small\n -> pipeline: small\nbatch_size: 32\n
    2: batch_size: unknown key; write train.global_batch_size: 64
wrong_type: epochs: 3 -> epochs: twenty
    8: train.epochs | valid integer, got 'twenty'
metric: metric: accuracy -> metric: acuracy
    11: evaluate.gate.0.metric: unknown name 'acuracy'; the nearest valid name is 'accuracy'
val_loss:   epochs: 3\n ->   epochs: 3\n  early_stopping: {monitor: val_loss}\n
    9: train.early_stopping.monitor | 'validation_loss'
few_shards:   epochs: 3\n ->   epochs: 3\n  workers: 9\n
    2: preprocess.shards: must be at least the number of training workers (9), got 8
unknown_model: model: digits_cnn -> model: digits_cn
    7: train.model | digits_cnn
unknown_source: type: image_folder -> type: image_foldr
    3: preprocess.source.type: unknown type 'image_foldr'; the nearest valid name is 'image_folder'
wrong_split: train: 0.8 -> train: 0.7
    5: preprocess.split: train + validation + test must be 1, got 0.9
no_model:   model: digits_cnn\n ->
    6: train.model: required, but not given
no_name: pipeline: small\n ->
    1: pipeline: required, but not given
capitals: pipeline: small -> pipeline: Small Model
    1: pipeline: must match the pattern | for example 'small_model'
text_for_section: source: {type: image_folder, path: raw} -> source: image_folder
    3: preprocess.source | image_folder
path_with_variable: path: raw -> path: $HOME/raw
    3: preprocess.source.path: has $HOME, and neither environment variables nor templates | Write
path_with_braces: path: raw} -> path: '${DATA}/raw'}
    3: preprocess.source.path: has ${DATA}, and neither
path_with_template: path: raw} -> path: '/raw/{{ ds }}'}
    3: preprocess.source.path: has {{ ds }}, and neither | {start:%Y-%m-%d}
root_with_variable: pipeline: small\n -> pipeline: small\nstorage: {root: $ROOT}\n
    2: storage.root: has $ROOT, and neither
registry_with_variable:   model: small\n ->   model: small\n  registry: $ROOT/models\n
    14: export.registry: has $ROOT, and neither
path_of_windows: path: raw} -> path: 'C:\data'}
    3: preprocess.source.path: is a path of Windows. Write the path on this host
share_of_windows: path: raw} -> path: '\\server\raw'}
    3: preprocess.source.path: is a path of Windows. Write the path on this host
tab_in_path: path: raw} -> path: "D:\train"}
    3: preprocess.source.path: has a tab | in single quotes
space_in_path: path: raw} -> path: 'raw '}
    3: preprocess.source.path: must not begin or end with a space
typographic_quotes: path: raw -> path: “raw”
    3: preprocess.source.path: must not | typographic quotation mark
python_none:   epochs: 3\n ->   epochs: 3\n  pool: None\n
    9: train.pool: is the text 'None'. Write null
norway: pipeline: small\n -> pipeline: small\ntags: [no]\n
    2: tags.0: input should be a valid string, got False. Put it in quotes
version: pipeline: small\n -> pipeline: small\ndescription: 1.10\n
    2: description | got 1.1. Put it in quotes
key_on: pipeline: small\n -> pipeline: small\non: push\n
    2: on: YAML reads this key as True. Put it in quotes, or remove it
quoted_number: epochs: 3 -> epochs: '3'
    8: train.epochs | got '3'. Write it without quotes
octal: epochs: 3 -> epochs: 010
    8: train.epochs | got '010'. Write a whole number
whole_float: epochs: 3 -> epochs: 3.0
    8: train.epochs | got 3.0. Write 3
percent_of: at_least: 0.9 -> at_least: 90%
    11: evaluate.gate.0.at_least | got '90%'. Write a number such as 0.9
none_for_number:   epochs: 3\n ->   epochs: 3\n  seed: None\n
    9: train.seed | got 'None'. Write null, or leave the key out
truth: test: 0.1} -> test: 0.1, stratify: 'true'}
    5: preprocess.split.stratify | got 'true'. Write true or false
nothing_in_section: pipeline: small\n -> pipeline: small\nstorage:\n  # root: x\n
    2: storage: must be a section ('key: value'), got None. Give it a value, or leave the key out
text_for_split: {train: 0.8, validation: 0.1, test: 0.1} -> 80/10/10
    5: preprocess.split: must be a section with train: ..., validation: ..., test: ...
stage_not_indented: stages: [decode] -> stages:\n    - decode:\n      channels: 1
    5: preprocess.stages.0: channels must be indented further than decode
key_with_a_space_that_is_none:   epochs: 3 ->   epochs : 3
    8: train.epochs | has a character that is not shown, 'epochs\xa0': type it again
list_for_section: train:\n -> train: []\nnotes:\n
    6: train: must be a section ('key: value'), got []
"""
"""Names and replacements in the good config. Below each are the line and the words."""


def _parse_meaning(given: str, message: str) -> Broken:
    (name, change), (line, says) = given.split(": ", 1), message.split(": ", 1)
    old, new = change.replace("\\n", "\n").split(" ->")
    return replace(name, old, new.removeprefix(" "), int(line), *says.split(" | "))


MEANINGS = [_parse_meaning(*case) for case in parse_cases(_MEANINGS)]

FILES = (
    make_file("empty", b"", 1, "is empty. Give a mapping of keys to values"),
    make_file("only_comments", b"# nothing\n", 1, "is empty", "mapping of keys to values"),
    make_file("only_text", b"hello\n", 1, "must be a mapping", "key: value"),
    make_file("only_list", b"- a\n- b\n", 1, "must be a mapping", "got a list"),
    make_file("utf16", GOOD.encode("utf-16"), 1, "is not UTF-8", "Save it as UTF-8"),
    make_file("utf16_alone", GOOD.encode("utf-16-le"), 1, "is UTF-16 and not UTF-8. Save it"),
    make_file(
        "latin1",
        GOOD.replace("digits_cnn", "zähler").encode("latin-1"),
        7,
        "is not UTF-8",
        "Save it as UTF-8",
    ),
    make_file(
        "zero_byte", GOOD.replace("s_cnn", "s\0cnn").encode(), 7, "character #x0000", "Remove it"
    ),
    make_file("binary", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 1, "is not UTF-8"),
    make_file(
        "cut_off",
        GOOD[: GOOD.index("decode]") + 3].replace(": small", ": cut_off").encode(),
        4,
        "did not find expected ',' or ']'",
    ),
    make_file(
        "dangling_link",
        lambda file: file.symlink_to("nowhere"),
        None,
        "cannot be read: No such file",
    ),
    make_file("link_to_itself", lambda file: file.symlink_to(file.name), None, "symbolic links"),
    make_file("folder", lambda file: file.mkdir(), None, "Is a directory", "Correct the path"),
    make_file("unreadable", _unreadable, None),
)

ALL = (*SYNTAX, *VALUES, *SCHEDULES, *MEANINGS, *FILES)
