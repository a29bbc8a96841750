"""Runs jobs in forks of one process that has imported them, so that a case costs no import.

Started as `python forker.py JOB` with the shim loaded. Reads one JSON object a line,
`{"request": PATH, "log": PATH}`, answers with the fork's pid, and then with its wait status.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys

_IMPORTED_MODULES = {
    "preprocess": [
        "beam_jobs.graph",
        "beam_jobs.planning.duplicates",
        "beam_jobs.output.shard",
    ],
    "train": [],
    "evaluate": ["pipeline_ops.served.client"],
    "export": ["pipeline_ops.served.client"],
}


def main() -> None:
    from pipeline_ops.planning.job_kinds import KINDS

    job = sys.argv[1]
    if job in ("evaluate", "export"):
        importlib.import_module("pipeline_ops.input.tensorflow_start")
    module = importlib.import_module(KINDS[job].module)
    for name in _IMPORTED_MODULES[job]:
        importlib.import_module(name)
    _write_line({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(module, job, command)
        _write_line({"pid": pid})
        _write_line({"status": os.waitpid(pid, 0)[1]})


def _write_line(value: dict) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _run(module, job: str, command: dict) -> None:
    """Becomes the job: a session of its own, output in its log, the same entry as `python -m`."""
    os.setsid()
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.root.handlers.clear()  # an import has configured them
    sys.argv = [module.__file__, "--request", command["request"]]
    code = 70
    try:
        _entry(module, job)
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(code)


def _entry(module, job: str) -> None:
    if job == "preprocess":
        module.main()
    else:
        from pipeline_ops.job.runner import run_job

        run_job(getattr(module, job))


if __name__ == "__main__":
    main()
