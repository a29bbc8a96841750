"""One try of a task, without Airflow: plans its job, starts it, and waits for its end.

    python tests/support/one_task.py '{"config": FILE, "overrides": {}, "job": JOB, "run": RUN,
                                       "manifests": {}}'

It prints the status of the job.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.orchestration.job_start import prepare_job, start_job
from pipeline_ops.planning.plan import plan_job


def main() -> None:
    task = json.loads(sys.argv[1])
    config = load_config(Path(task["config"]), task["overrides"])
    plan = plan_job(task["job"], config, task["run"], task["manifests"])
    handle = prepare_job(plan, Layout(config.root, config.pipeline), task["job"])
    start_job(plan, handle)
    while (status := handle.read_outcome()) is None:
        time.sleep(0.2)
    handle.clean_up()
    print(status.model_dump_json())


if __name__ == "__main__":
    main()
