"""Two teams in one Airflow: no account reads, writes or stops anything of the other team.

All programs and jobs run as one user of the operating system, as where teams share workers. A job
could therefore read the other team's files. These tests show that no request of team A's users to
Airflow's API makes it do so. They do not show isolation by the operating system.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator

import httpx
import pytest
from cli import team_exploits
from cli.team_confs import CONFS, confs
from cli.team_scene import Scene, open_scene, untouched
from cli.teams import CANARY, Member, TeamRun, Teams
from cli.touching import compute_digests
from processes import wait_until

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.run_conf import apply_conf
from pipeline_ops.errors import ConfigError

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

_ENDED_SECONDS = 60.0
PAGES = ("progress", "report", "report/content")
SAME_SITE = {"sec-fetch-site": "same-origin"}
FORM = {"version": "1", "expected": "1", "reason": ""}


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Iterator[Scene]:
    with open_scene(Teams(tmp_path_factory.mktemp("teams"), os.environ)) as scene:
        before = compute_digests(scene.quiet)
        yield scene
        assert compute_digests(scene.quiet) == before


@pytest.fixture
def kept(scene) -> Iterator[None]:
    """Restores the storage and the registry of team A after the test."""
    places, copies = [scene.a.folder / "storage", scene.a.registry], scene.teams.folder / "copies"
    for place in places:
        shutil.copytree(place, copies / place.name, symlinks=True)
    yield
    for place in places:
        shutil.rmtree(place)
        shutil.copytree(copies / place.name, place, symlinks=True)
    shutil.rmtree(copies)


def look(member: Member, dag: str, page: str, run: TeamRun) -> httpx.Response:
    """The answer of a page of a DAG to a member who asks for a run."""
    address = f"/trainyard/pipelines/{dag}/{page}"
    return member.call("GET", address, params={"run_id": run.run_id})


@pytest.mark.parametrize("name", CONFS)
def test_a_conf_that_reaches_for_the_other_team_is_refused(scene, name):
    """F1, F2, F6 and F12 by a run's conf, and every key of the author's with a path of team B."""
    with untouched(scene):
        for conf in confs(scene)[name]:
            with pytest.raises(ConfigError) as refused:
                apply_conf(load_config(scene.a.configs / "a_gated.yaml"), conf)
            for key in conf:
                assert f"conf {key}: " in str(refused.value)


def test_a_forbidden_conf_ends_a_run_in_its_first_task(scene):
    """Its pages show nothing of team B either."""
    chosen = [confs(scene)[name][-1] for name in CONFS]
    runs = scene.trigger_unchecked("a_unchecked", chosen)
    with untouched(scene):
        for conf, run in zip(chosen, runs, strict=True):
            assert run.wait_for_end()["preprocess"] == "failed"
            log = run.log("preprocess")
            assert all(f"conf {key}: " in log for key in conf), log
            for page in PAGES:
                look(scene.alice, run.dag, page, run)
    assert not (scene.a.registry / "a_unchecked").exists()


@pytest.mark.parametrize("exploit", team_exploits.EXPLOITS, ids=list(team_exploits.EXPLOITS))
def test_an_exploit_does_not_reach_the_other_team(scene, kept, exploit):
    """F2, F7, F8, F9 and F12 by files, XComs and task state."""
    team_exploits.PREPARATIONS.get(exploit, lambda _: None)(scene)
    with untouched(scene):
        team_exploits.EXPLOITS[exploit](scene)


def routes() -> list[tuple[str, str]]:
    from pipeline_ops.ui.app import app

    return sorted((method, route.path) for route in app.routes for method in route.methods)


def test_every_page_of_the_other_teams_pipelines_is_forbidden(scene):
    """Checks every route of the application. Without a login, all routes are refused."""
    with untouched(scene), scene.teams.anonymous() as anonymous:
        for method, path in routes():
            address = "/trainyard" + path.format(dag_id="b_digits", name="style", suffix="css")
            query, form = {"run_id": scene.finished_b.run_id}, FORM if method == "POST" else None
            sent = {"params": query, "data": form, "headers": SAME_SITE}
            assert anonymous.request(method, address, **sent).status_code == 401, address
            for member in (scene.alice, scene.victor):
                answer, expected = member.call(method, address, **sent), 200
                if "{dag_id}" in path:
                    expected = 403
                assert answer.status_code == expected, f"{member.name}: {method} {address}"
                assert "b_digits" not in answer.text


def test_a_run_of_the_other_team_is_not_found_below_a_pipeline_of_ones_own(scene):
    with untouched(scene):
        for page in PAGES:
            assert look(scene.alice, "a_digits", page, scene.finished_b).status_code == 404


def test_who_is_of_the_team_sees_its_pages(scene):
    """Proves that the pages exist, which the test above requires. A viewer changes nothing."""
    for page in ("progress", "report", "report/content", "models"):
        assert look(scene.bob, "b_digits", page, scene.finished_b).status_code == 200
        assert look(scene.victor, "a_digits", page, scene.finished_a).status_code == 200
    assert CANARY in look(scene.bob, "b_digits", "report/content", scene.finished_b).text
    for change in ("promote", "rollback"):
        answer = scene.victor.call(
            "POST", f"/trainyard/pipelines/a_digits/models/{change}", data=FORM, headers=SAME_SITE
        )
        assert answer.status_code == 403


def test_every_call_of_airflow_on_a_dag_of_the_other_team_is_forbidden(scene):
    """Airflow's own rule, for every call that names a DAG in its address: ours is built on it.

    Those for many runs read the body first.
    """
    run = scene.training_b
    values = {
        "dag_id": run.dag,
        "dag_run_id": run.run_id,
        "task_id": "train",
        "map_index": "-1",
        "try_number": "1",
        "xcom_key": "return_value",
        "key": "trainyard_job",
        "task_group_id": "train",
    }
    with untouched(scene):
        for path, methods in scene.bob.call("GET", "/openapi.json").json()["paths"].items():
            address = path.format_map(defaultdict(lambda: "1", values))
            for method in sorted(methods) if "{dag_id}" in path else ():
                for member in (scene.alice, scene.victor):
                    answer = member.call(method.upper(), address, None if method == "get" else {})
                    call = (method, path.removeprefix("/api/v2/dags/{dag_id}/"))
                    expected = (403, 422) if call in team_exploits.CALLS_FOR_MANY else (403,)
                    assert answer.status_code in expected, f"{method} {address}: {answer.text}"


def test_an_asset_of_the_other_team_can_be_seen_and_not_used(scene):
    """Airflow's simple accounts list the assets of all teams.

    An event of one would start the runs that wait for it.
    """
    assets = scene.alice.call("GET", "/api/v2/assets").json()["assets"]
    theirs = [asset for asset in assets if asset["name"].startswith("b_")]
    assert theirs
    with untouched(scene):
        for asset in theirs:
            event = {"asset_id": asset["id"], "extra": {}}
            for path, body in ((f"{asset['id']}/materialize", {}), ("events", event)):
                answer = scene.alice.call("POST", f"/api/v2/assets/{path}", body)
                assert answer.status_code == 403, path


@pytest.mark.parametrize("through", ["a_digits", "b_long", "~"])
def test_a_call_for_many_runs_or_tasks_does_not_reach_the_other_teams(scene, through):
    """The body of such a call names the DAGs."""
    with untouched(scene):
        for (method, path), bodies in team_exploits.CALLS_FOR_MANY.items():
            address = f"/api/v2/dags/{through}/" + path.replace(
                "{dag_run_id}", "~" if through == "~" else scene.training_b.run_id
            )
            for body in bodies(scene.training_b):
                answer = scene.alice.call(method.upper(), address, body)
                parts = answer.json().values() if answer.is_success else ()
                done = any(part["success"] for part in parts if part)
                assert not done, f"{method} {address}: {answer.text}"
        assert scene.training_b.get_state("train") == "deferred"


def test_our_own_cancelled_training_ends_beside_hostile_records(scene, kept):
    """F8: the API server ends it though the triggerer is dead and other records are damaged."""
    scene.alice.wait_for_dag("a_long")
    run = scene.alice.trigger("a_long", {"train.epochs": 50_000})
    scene.wait_for_steps(run)
    team_exploits.spoil_records(scene)
    scene.teams.kill("triggerer-team_a")
    with untouched(scene):
        run.mark("train", "failed")
        wait_until(lambda: not scene.processes(run), _ENDED_SECONDS)
    scene.teams.restart("triggerer-team_a")


def test_nothing_of_the_other_team_is_among_what_team_a_has(scene):
    """Checks the files and logs of all runs. `Member.call` checks the responses."""
    logs = list((scene.teams.home.folder / "logs").glob("dag_id=a_*"))
    assert logs
    for place in (scene.a.folder, *logs):
        for file in place.rglob("*"):
            if file.is_file() and not file.is_symlink():
                assert CANARY.encode() not in file.read_bytes(), file
