"""Own content of real jobs, of a source beside the YAML, and the pictures in the report."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from config_files import write_config, write_digits
from job_chain import run_jobs

from pipeline_ops.card.page import CARD_PAGE
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import REPORT, SEEN_PICTURES

SOURCE = """
from collections import Counter

from beam_jobs.sources.source import SourceEntry, SourceFiles, parameters
from pipeline_ops import card


@parameters
class Folders:
    pass


def read(files: SourceFiles, parameters: Folders):
    found = Counter(path.split("/")[0] for path in files)
    card.figure("Files & folders", f"{len(files)} in {len(found)}")
    card.table("By folder", [{"folder": n, "files": c} for n, c in sorted(found.items())])
    for path in files:
        yield SourceEntry(path, path.split("/")[0])
"""


@pytest.mark.training
def test_a_source_shows_content_and_the_report_shows_the_pictures_as_the_model_saw_them(tmp_path):
    (tmp_path / "folders.py").write_text(SOURCE)
    write_digits(tmp_path / "raw")
    source = {"type": "folders:read", "path": str(tmp_path / "raw")}
    gate = [{"metric": "accuracy", "at_least": 0.2}]
    config = write_config(tmp_path, {"preprocess.source": source, "evaluate.gate": gate})
    alone = {"train__epochs": 2, "train__workers": 1, "train__strategy": "one_device"}
    manifests = run_jobs(config, tmp_path, "evaluate", **alone)
    folders = {job: Path(manifest).parent for job, manifest in manifests.items()}
    page = (folders["preprocess"] / CARD_PAGE).read_text()
    assert "<dt>Files &amp; folders</dt><dd>1797 in 10</dd>" in page
    assert "<td>0</td><td>178</td>" in page
    listed = {file.path for file in read_manifest(manifests["preprocess"]).files}
    assert CARD_PAGE in listed and not (folders["train"] / CARD_PAGE).exists()
    seen = base64.b64encode((folders["train"] / SEEN_PICTURES).read_bytes()).decode()
    assert f'src="data:image/png;base64,{seen}"' in (folders["evaluate"] / REPORT).read_text()
