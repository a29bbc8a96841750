"""Random and damaged bytes for each kind of job file and for the task state:
only documented errors.

`TRAINYARD_FUZZ_CASES=10000` sets the number of cases for each test. The examples are cases that
once ended in another error.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline_ops.contract.cancellation import StoredJob, read_cancellation_reason
from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader, parse_progress
from pipeline_ops.contract.request import Request, Status, read_status
from pipeline_ops.contract.task_record import TaskRecord, read_record
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.ui.progress import TrainingCurves, draw_curves
from pipeline_ops.storage.local_files import UnsafePath, parse_relative_path
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.parsing import parse_json_as, read_json_as
from pipeline_ops.system.processes import ProcessIdentity, find_group_members, kill_group

CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", "300"))
fuzz = settings(
    max_examples=CASES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

_numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from(
        [10**400, -1, 2**53, 2**63, 2**64, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf]
    ),
)
_texts = st.one_of(
    st.text(max_size=50),
    st.sampled_from(
        [
            "",
            "\0",
            "a" * 20_000,
            "../..",
            "/etc/passwd",
            "NaN",
            "train",
            "attempt-00000000",
            "success",
        ]
    ),
)
_leaves = st.one_of(st.none(), st.booleans(), _numbers, _texts)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_texts, inner, max_size=4)
    ),
    max_leaves=12,
)
VALID = {
    ProgressEvent: {
        "time": 1.5,
        "phase": "train",
        "done": 3,
        "total": 9,
        "unit": "steps",
        "rate": 1.0,
        "eta_seconds": 6.0,
        "metrics": {"loss": 0.5},
        "worker": 0,
        "message": "m",
    },
    TaskRecord: {
        "state": "success",
        "cached": False,
        "reason": "r",
        "manifest": "/m",
        "message": "",
        "attempt": "/a",
        "exit_code": 0,
    },
    Status: {"exit_code": 75, "manifest": None, "message": "m"},
    ProcessIdentity: {"host": "h", "pid": 4_000_000, "start_ticks": 7},
    StoredJob: {
        "attempt": "attempt-0123abcd",
        "owner": {"task_instance": "t", "max_tries": 2, "clear_number": 0},
    },
    Request: {
        "job": "train",
        "pipeline": "p",
        "run_id": "r",
        "config_file": "/c",
        "config": {},
        "root": "/r",
        "artifact": "/r/a",
        "deadline_seconds": 9,
        "fingerprint": {"config": {}, "inputs": {}, "code": {}, "versions": {}},
    },
}


@st.composite
def damaged(draw: st.DrawFn, model: type) -> bytes:
    """Bytes near those of a valid record: a value is another one, a key is missing or new, or the
    text is cut."""
    value = dict(VALID[model])
    for key in draw(st.lists(st.sampled_from([*value, "other"]), max_size=3)):
        if draw(st.booleans()):
            value.pop(key, None)
        else:
            value[key] = draw(_values)
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    cut = draw(st.integers(0, len(text)))
    return draw(
        st.sampled_from([text, text[:cut], text[:cut] + draw(st.binary(max_size=5)) + text[cut:]])
    )


@pytest.mark.parametrize("model", VALID, ids=lambda model: model.__name__)
def test_a_valid_record_is_taken(model):
    assert parse_json_as(model, json.dumps(VALID[model]), "file") is not None


@pytest.mark.parametrize("model", VALID, ids=lambda model: model.__name__)
def test_bytes_of_any_kind_are_a_value_or_one_error_with_its_place(model):
    @fuzz
    @given(
        st.one_of(
            damaged(model),
            st.binary(max_size=200),
            _values.map(lambda value: json.dumps(value).encode()),
        )
    )
    @example(b"[" * 100_000)
    @example(b'{"a":' * 100_000)
    @example(b"9" * 5000)
    @example(b'"\\ud800"')
    @example(b"\xff")
    def parse(content: bytes) -> None:
        try:
            parse_json_as(model, content, "file.json")
        except DataError as error:
            assert str(error).startswith(f"file.json: not a valid {model.__name__}: ")
            assert len(str(error)) < 1500

    parse()


@fuzz
@given(st.lists(st.one_of(damaged(ProgressEvent), st.binary(max_size=60)), max_size=8))
@example([b'{"time": 1, "phase": "train", "metrics": {"loss": null}}'])
@example(
    [
        b'{"time": 1, "phase": "train", "done": 1, "metrics": {"loss": 1e308, "own": -1e308}}',
        b'{"time": 1, "phase": "train", "done": 2, "metrics": {"loss": -1e308, "own": 1e-320}}',
    ]
)
def test_a_progress_file_of_any_content_can_be_read_told_and_drawn(lines):
    """F16."""
    good = b'{"time": 2, "phase": "end"}'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "progress.jsonl"
        path.write_bytes(b"\n".join([*lines, good]) + b"\n")
        reader = ProgressReader(open_path(path))
        events = [event for chunk in reader.read_all() for event in chunk]
    assert events[-1].phase == "end"
    for event in events:
        assert str(event)
        assert (
            parse_progress(event.model_dump_json(exclude_defaults=True).encode(), "again").phase
            == event.phase
        )
    curves = TrainingCurves()
    curves.add(events)
    for chart in draw_curves(curves.points, "steps"):
        assert "nan" not in str(chart.drawing) and "inf" not in str(chart.drawing)


@fuzz
@given(
    *(
        st.one_of(damaged(model), st.binary(max_size=60))
        for model in (Status, TaskRecord, ProcessIdentity)
    ),
    st.binary(max_size=60),
)
def test_the_files_of_a_job_of_any_content_are_values_or_documented_errors(
    status, record, process, cancellation
):
    """F8."""
    with tempfile.TemporaryDirectory() as folder:
        root = open_root(folder)
        attempt = Attempt(root)
        for path, content in (
            (attempt.status, status),
            (attempt.process, process),
            (attempt.cancellation, cancellation),
        ):
            path.write(content)
        (root / "train.json").write(record)
        for read in (
            lambda: read_status(attempt),
            lambda: read_json_as(ProcessIdentity, attempt.process),
            lambda: read_record(root / "train.json"),
        ):
            try:
                read()
            except DataError as error:
                assert str(error).startswith(folder)
        assert read_cancellation_reason(attempt)


@fuzz
@given(_values)
@example(
    {
        "attempt": "attempt-00000000",
        "owner": {"task_instance": "x", "max_tries": 10**400, "clear_number": 0},
    }
)
@example("s3://bucket/reference")
def test_a_task_state_of_any_kind_names_an_attempt_of_its_own_task_or_nothing(value):
    """F8."""
    layout = Layout(open_root("/root"), "digits")
    try:
        stored = StoredJob.parse(value)
        attempt = layout.attempt("run", "train", stored.attempt)
    except DataError:
        return
    assert attempt.folder.parent == layout.attempts("run", "train")


@fuzz
@given(st.one_of(_texts, st.text(alphabet="./\\ab\0\n\x7fé", max_size=12)))
@example("a/../../b")
@example("a\\..\\b")
def test_a_path_of_any_text_stays_below_its_folder_or_is_refused(text):
    """F7."""
    try:
        path = parse_relative_path(text)
    except UnsafePath:
        return
    assert os.path.normpath(f"/root/{path}") == f"/root/{path}"
    with pytest.raises((FileNotFoundError, UnsafePath)):
        (open_root("/proc/self/fdinfo") / f"none/{path}").read(10)


@fuzz
@given(st.integers(1, 2**22), st.integers(0, 2**40))
def test_no_process_is_signalled_because_of_random_numbers(pid, ticks):
    """F8: this very process has no mark, and lives on."""
    mark = ("TRAINYARD_ATTEMPT", "/no/such/attempt")
    assert kill_group(ProcessIdentity("host", pid, ticks), 0.0, mark)
    assert kill_group(ProcessIdentity("host", os.getpgrp(), ticks), 0.0, mark)
    assert os.getpid() in find_group_members(os.getpgrp())
