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
from task_contexts import Store, make_context

from pipeline_ops.orchestration.tasks import OPERATORS


def execute(given: dict[str, Any]) -> dict[str, Any]:
    kind = next(each for each in OPERATORS if each.job == given["job"])
    operator = kind(config_file=given["config"])
    operator.defer_after_seconds = 0
    store = Store(given["store"])
    context = make_context(given["manifests"], store=store)
    events = collections.defaultdict(lambda: SimpleNamespace(add=lambda *_, **__: 0))
    context["outlet_events"] = events
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
