"""The place of a task's entry about its job, from one try to the next.

From Airflow 3.3 on, it is the task state store. Airflow 3.2 has none, and removes the XComs of a
task when its next try begins. There, the entry is a file in the folder of the run, for the next
try, and an XCom, for the orphan reaper. A forged file ends or spares only the job of its own task.
All who can write there can do that anyway, with the other files of the job.
"""

from __future__ import annotations

from pipeline_ops.jobs.cancellation import STORE_KEY, StoredJob
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.storage.parsing import read_json_as


def write_entry(run: TaskRun, task: str, job: StoredJob) -> None:
    """Writes the entry of a task, in place of an older one."""
    if "task_state_store" in run.context:
        run.context["task_state_store"].set(STORE_KEY, job.model_dump())
        return
    from airflow.sdk.bases.xcom import BaseXCom  # the base: in the database, not in a backend

    content = job.model_dump_json()
    run.layout.claim(run.run_id, task).write(content.encode(), mode=0o600)
    ti = run.context["ti"]
    BaseXCom.set(
        STORE_KEY,
        content,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=run.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def read_entry(run: TaskRun, task: str) -> StoredJob | None:
    """Reads the entry of a task. Raises DataError if it is invalid."""
    if "task_state_store" not in run.context:
        return read_json_as(StoredJob, run.layout.claim(run.run_id, task))
    value = run.context["task_state_store"].get(STORE_KEY)
    return StoredJob.parse(value) if value else None
