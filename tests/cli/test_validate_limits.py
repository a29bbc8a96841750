"""The cost of `trainyard validate` for broken files, measured by the kernel per process (F11)."""

from __future__ import annotations

import json
import subprocess
import sys

from config.broken_yamls import ALL

MAX_SECONDS, MAX_MIB = 1.0, 200
_VALIDATE_EACH = """
import json, os, sys, time
from pathlib import Path
import beam_jobs.stages, croniter
from pipeline_ops.cli.main import main

for file in sys.argv[1:]:
    errors = Path(file + ".errors")
    if (child := os.fork()) == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        os._exit(main(["validate", file]))
    _, status, usage = os.wait4(child, 0)
    print(json.dumps([file, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, errors.read_text()]))
"""  # noqa: E501


def test_each_file_of_the_corpus_is_refused_within_a_second_and_200_mib(tmp_path):
    """Imports the modules once, so that only the cost of a file is measured."""
    files = {str(broken.write(tmp_path)): broken for broken in ALL}
    process = subprocess.run(
        [sys.executable, "-c", _VALIDATE_EACH, *files],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert [file for file, *_ in results] == list(files)
    for file, status, seconds, mib, errors in results:
        assert status == 78, (file, status, errors)
        assert errors.startswith(file) and len(errors) < 3000, errors
        assert (seconds < MAX_SECONDS, mib < MAX_MIB) == (True, True), (file, seconds, mib)
