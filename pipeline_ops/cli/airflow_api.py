"""The few calls of Airflow's REST API that the commands need.

Requests to a busy or restarting server are retried for a while. A rejected request is an error with
the message of the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from pipeline_ops.contract.outcome import is_ending_event
from pipeline_ops.errors import ConfigError, MachineError

if TYPE_CHECKING:
    import httpx

ACCESS_VARIABLE = "TRAINYARD_AIRFLOW_PASSWORD"
"""The environment variable with the password for an Airflow that exists."""
_LOGIN = "/auth/token"
_REQUEST_TIMEOUT_SECONDS = 30.0
_RETRY_TIMEOUT_SECONDS = 60.0
_RETRY_INTERVAL_SECONDS = 0.2


class AirflowApi:
    """One user's session with one Airflow, as a context.

    `before_retry` is called before each retry of a request. It may raise to end the retries.
    """

    def __init__(
        self, url: str, user: str, password: str, before_retry: Callable[[], None] = lambda: None
    ):
        import httpx

        self._client = httpx.Client(base_url=url, timeout=_REQUEST_TIMEOUT_SECONDS, trust_env=False)
        self._connection_error = httpx.TransportError
        self._before_retry = before_retry
        self._login = {"username": user, "password": password}

    def __enter__(self) -> AirflowApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def warm_up(self) -> None:
        """Lets the server build the interface for the tasks, which the first one would wait for."""
        self._call("GET", "/execution/health")

    def log_in(self) -> None:
        answer = self._call("POST", _LOGIN, self._login, accepted=401)
        if not answer:
            raise ConfigError(
                f"Airflow at {self._client.base_url} does not know the user "
                f"{self._login['username']} with this password (401)",
                f"Correct --user or {ACCESS_VARIABLE}",
            )
        self._client.headers["Authorization"] = f"Bearer {answer['access_token']}"

    def health(self) -> dict[str, dict[str, Any]]:
        return self._call("GET", "/api/v2/monitor/health")

    def list_import_errors(self, since: float) -> list[str]:
        """Returns the import errors of the DAG files that were parsed since a Unix time."""
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        return [
            f"{error['filename']}:\n{error['stack_trace']}"
            for error in errors
            if parse_timestamp(error["timestamp"]) >= since
        ]

    def dag(self, dag: str) -> dict[str, Any] | None:
        """Returns the DAG; None if there is none, or only a stale one."""
        found = self._call("GET", f"/api/v2/dags/{dag}", accepted=404)
        return None if found.get("is_stale", True) else found

    def request_parse(self, file_token: str) -> None:
        path = f"/api/v2/parseDagFile/{quote(file_token, safe='')}"
        self._call("PUT", path, accepted=409)  # 409: has been requested already

    def pause(self, dag: str, paused: bool) -> None:
        self._call("PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag: str, conf: Mapping[str, Any], run_id: str | None = None) -> str:
        """Triggers a run and returns its id, so that a repeated request makes only one run."""
        run_id = run_id or make_run_id()
        # SQLite has whole seconds: a run that is due now would wait for the next one.
        run_after = datetime.now(UTC) - timedelta(seconds=1)
        run = {
            "dag_run_id": run_id,
            "logical_date": None,
            "run_after": run_after.isoformat(),
            "conf": dict(conf),
        }
        self._call("POST", f"/api/v2/dags/{dag}/dagRuns", run, accepted=409)
        return run_id

    def get_run_page(self, dag: str, run_id: str) -> str:
        """The address of a run in the UI."""
        return str(self._client.base_url.join(f"/dags/{dag}/runs/{quote(run_id, safe='')}"))

    def run(self, dag: str, run_id: str) -> dict[str, Any]:
        return self._call("GET", _make_run_path(dag, run_id))

    def tasks(self, dag: str, run_id: str) -> list[dict[str, Any]]:
        found = self._call("GET", f"{_make_run_path(dag, run_id)}/taskInstances")
        instances: list[dict[str, Any]] = found["task_instances"]
        return instances

    def list_active_runs(self, dag: str) -> list[str]:
        found = self._call("GET", f"/api/v2/dags/{dag}/dagRuns?state=running&state=queued")
        return [run["dag_run_id"] for run in found["dag_runs"]]

    def fail_runs_before(self, moment: float) -> None:
        """Marks the unfinished runs of all DAGs failed that were queued before a Unix time."""
        query = "state=running&state=queued&order_by=run_after"  # a page has the first 50
        while old := [
            run
            for run in self._call("GET", f"/api/v2/dags/~/dagRuns?{query}")["dag_runs"]
            if parse_timestamp(run["queued_at"] or run["run_after"]) < moment
        ]:
            for run in old:
                self.fail_run(run["dag_id"], run["dag_run_id"])

    def fail_run(self, dag: str, run_id: str) -> None:
        """Marks a run failed, which ends its tasks."""
        self._call("PATCH", _make_run_path(dag, run_id), {"state": "failed"})

    def find_canceller(self, dag: str, run_id: str) -> str:
        """Returns the user who has marked a run or one of its tasks failed, or "" if nobody has."""
        query = urlencode({"dag_id": dag, "run_id": run_id, "order_by": "-when", "limit": 50})
        for entry in self._call("GET", f"/api/v2/eventLogs?{query}")["event_logs"]:
            if is_ending_event(entry["event"], entry["extra"]):
                return str(entry["owner"])
        return ""

    def _call(
        self, method: str, path: str, body: Any = None, accepted: int | None = None
    ) -> dict[str, Any]:
        """Returns the JSON object of the response. It is empty for the accepted error status."""
        response = self._send_with_retries(method, path, body)
        if response.status_code == 401 and path != _LOGIN:
            self.log_in()  # a run may take longer than a token lives
            response = self._send_with_retries(method, path, body)
        if response.status_code == accepted:
            return {}
        if response.is_error:
            try:
                detail = str(response.json().get("detail"))
            except ValueError:
                detail = response.text[:500]
            raise MachineError(f"Airflow rejected {method} {path}: {response.status_code} {detail}")
        found: dict[str, Any] = response.json() if response.content else {}
        return found

    def _send_with_retries(self, method: str, path: str, body: Any) -> httpx.Response:
        """Repeats a request while the server does not respond. Each may arrive twice."""
        deadline = time.monotonic() + _RETRY_TIMEOUT_SECONDS
        while True:
            try:
                response = self._client.request(method, path, json=body)
            except self._connection_error as error:
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"Airflow at {self._client.base_url} does not respond to "
                        f"{method} {path}: {error!r}"
                    ) from error
            else:
                if not response.is_server_error or time.monotonic() > deadline:
                    return response
            self._before_retry()
            time.sleep(_RETRY_INTERVAL_SECONDS)


def _make_run_path(dag: str, run_id: str) -> str:
    return f"/api/v2/dags/{dag}/dagRuns/{quote(run_id, safe='')}"


def make_run_id() -> str:
    """Makes the id of a manual run as Airflow does."""
    return f"manual__{datetime.now(UTC).isoformat()}"


def parse_timestamp(text: str) -> float:
    """Converts a time of the API to Unix time."""
    return datetime.fromisoformat(text).timestamp()
