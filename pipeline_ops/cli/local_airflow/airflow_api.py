"""The few calls of Airflow's REST API that the commands need.

A busy or restarting server is asked again for a while. A refusal is an error with the server's own
words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline_ops.errors import MachineError

if TYPE_CHECKING:
    import httpx

_LOGIN = "/auth/token"
_REQUEST_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0
_RETRY_SECONDS = 0.2


class AirflowApi:
    """One user's session with one Airflow. Closes its connections when used as a context.

    Args:
      meanwhile: called between two attempts of a call. It may raise if waiting is pointless.
    """

    def __init__(
        self, url: str, user: str, password: str, meanwhile: Callable[[], None] = lambda: None
    ):
        import httpx

        self._client = httpx.Client(base_url=url, timeout=_REQUEST_SECONDS, trust_env=False)
        self._again = (
            httpx.ConnectError,
            httpx.ReadError,
            httpx.RemoteProtocolError,
            httpx.TimeoutException,
        )
        self._meanwhile = meanwhile
        self._login = {"username": user, "password": password}

    def __enter__(self) -> AirflowApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def warm_up(self) -> None:
        """Lets the server build the interface for the tasks.

        That takes seconds, and would otherwise happen inside the first task.
        """
        self._call("GET", "/execution/health")

    def log_in(self) -> None:
        self._client.headers["Authorization"] = (
            f"Bearer {self._call('POST', _LOGIN, self._login)['access_token']}"
        )

    def health(self) -> dict[str, dict[str, Any]]:
        return self._call("GET", "/api/v2/monitor/health")

    def import_errors(self, since: float, without: str | None = None) -> list[str]:
        """The errors of the DAG files that were read since a time, without those of one file.

        The time is in seconds since 1970.
        """
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        return [
            f"{error['filename']}:\n{error['stack_trace']}"
            for error in errors
            if seconds_since_1970(error["timestamp"]) >= since and error["filename"] != without
        ]

    def dag(self, dag: str) -> dict[str, Any] | None:
        """The DAG; None if there is none, or only a stale one."""
        found = self._call("GET", f"/api/v2/dags/{dag}", accepted=(404,))
        return None if found is None or found["is_stale"] else found

    def parse_again(self, file_token: str) -> None:
        """Asks Airflow to read a DAG file soon."""
        self._call(
            "PUT", f"/api/v2/parseDagFile/{quote(file_token, safe='')}", accepted=(409,)
        )  # 409: has been requested already

    def pause(self, dag: str, paused: bool) -> None:
        self._call("PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag: str, conf: Mapping[str, Any], run_id: str | None = None) -> str:
        """Triggers a run and returns its id.

        The id is chosen here, so that a call that is repeated after a lost answer makes one run.
        """
        run_id = run_id or new_run_id()
        due = datetime.now(UTC) - timedelta(
            seconds=1
        )  # SQLite has whole seconds: a run that is due now would wait for the next one
        self._call(
            "POST",
            f"/api/v2/dags/{dag}/dagRuns",
            {
                "dag_run_id": run_id,
                "logical_date": None,
                "run_after": due.isoformat(),
                "conf": dict(conf),
            },
            accepted=(409,),
        )
        return run_id

    def run(self, dag: str, run_id: str) -> dict[str, Any]:
        return self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{quote(run_id, safe='')}")

    def tasks(self, dag: str, run_id: str) -> list[dict[str, Any]]:
        return self._call(
            "GET", f"/api/v2/dags/{dag}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        )["task_instances"]

    def active_runs(self, dag: str) -> list[str]:
        return [
            run["dag_run_id"]
            for run in self._call("GET", f"/api/v2/dags/{dag}/dagRuns?state=running&state=queued")[
                "dag_runs"
            ]
        ]

    def fail_run(self, dag: str, run_id: str) -> None:
        """Marks a run failed, which ends its tasks."""
        self._call(
            "PATCH", f"/api/v2/dags/{dag}/dagRuns/{quote(run_id, safe='')}", {"state": "failed"}
        )

    def _call(
        self, method: str, path: str, body: Any = None, accepted: Collection[int] = ()
    ) -> Any:
        """The answer's JSON; None for an accepted refusal."""
        answer = self._patiently(method, path, body)
        if answer.status_code == 401 and path != _LOGIN:  # a run may take longer than a token lives
            self.log_in()
            answer = self._patiently(method, path, body)
        if answer.status_code in accepted:
            return None
        if answer.is_error:
            raise MachineError(
                f"Airflow refuses {method} {path}: {answer.status_code} {_detail(answer)}"
            )
        return answer.json() if answer.content else None

    def _patiently(self, method: str, path: str, body: Any) -> httpx.Response:
        """Repeats a call while the server does not answer. Every call here may be made twice."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                answer = self._client.request(method, path, json=body)
            except self._again as error:
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"Airflow at {self._client.base_url} does not answer "
                        f"{method} {path}: {error!r}"
                    ) from error
            else:
                if not answer.is_server_error or time.monotonic() > deadline:
                    return answer
            self._meanwhile()
            time.sleep(_RETRY_SECONDS)


def new_run_id() -> str:
    """A run id for a manual run, as Airflow would choose it."""
    return f"manual__{datetime.now(UTC).isoformat()}"


def seconds_since_1970(text: str) -> float:
    """Converts a time of the API to seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("detail"))
    except ValueError:
        return answer.text[:500]
