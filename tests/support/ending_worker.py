"""One execution of a task, in a process of its own that ends when the task defers.

The test removes the process with all that it has started, as KubernetesExecutor removes a pod.
Input and output are JSON. The input has the job, the config, the entry of Airflow's task state
store, the manifests of the earlier tasks, and the event if the trigger has fired. The output has
the manifest, or the trigger, and the entry.
"""

from __future__ import annotations

import collections
import json
import sys
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred

from pipeline_ops.operators.tasks import OPERATORS


class Store(dict):
    set = dict.__setitem__


def execute(given: dict[str, Any]) -> dict[str, Any]:
    kind = next(each for each in OPERATORS if each.job == given["job"])
    operator = kind(config_file=given["config"])
    operator.defer_after_seconds = 0
    store = Store(given["store"])
    context = {
        "ti": SimpleNamespace(
            xcom_pull=lambda task_ids: given["manifests"][task_ids], id="first", max_tries=2
        ),
        "dag_run": SimpleNamespace(conf={}, clear_number=0),
        "run_id": "manual__1",
        "task_state_store": store,
        "outlet_events": collections.defaultdict(lambda: SimpleNamespace(add=lambda *_, **__: 0)),
    }
    try:
        if event := given["event"]:
            answer = {"manifest": operator.resume(context, event)}
        else:
            answer = {"manifest": operator.execute(context)}
    except TaskDeferred as deferred:
        answer = {"trigger": deferred.trigger.serialize()[1]}
    return answer | {"store": dict(store)}


if __name__ == "__main__":
    result = execute(json.load(sys.stdin))
    print(json.dumps(result))
