"""The import borders of the tree: who may import whom, read from every file."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

OURS = ("pipeline_ops", "beam_jobs")
TENSORFLOW = {"tensorflow", "keras", "numpy"}
EVERYWHERE = {"pydantic"}  # the language of all that is said between processes
LAYERS = (
    "errors",
    "storage",
    "system",
    "config",
    "pages",
    "card",
    "contract",
    "user_code",
    "raw_data",
    "job",
    "places",
    "registry",
    "retention",
    "planning",
)
"""Each may import itself and those before it."""


def up_to(layer: str) -> set[str]:
    return set(LAYERS[: LAYERS.index(layer) + 1])


SHARED = up_to("registry")
BORDERS: dict[str, tuple[set[str], set[str]]] = {
    # package: (our packages, other distributions) that it may import at any place of any file
    "pipeline_ops/__init__.py": (set(), set()),
    "pipeline_ops/errors.py": (up_to("errors"), set()),
    "pipeline_ops/storage": (up_to("storage"), {"google_crc32c", "obstore"}),
    "pipeline_ops/system": (up_to("system"), {"psutil"}),
    "pipeline_ops/config": (up_to("config"), {"croniter", "yaml"}),
    "pipeline_ops/pages/drawing.py": (set(), {"PIL"}),
    "pipeline_ops/pages": (up_to("pages"), {"jinja2", "markupsafe"}),
    "pipeline_ops/card": (up_to("card"), {"numpy", "PIL"}),
    "pipeline_ops/contract": (up_to("contract"), set()),
    "pipeline_ops/user_code": (up_to("user_code"), set()),
    "pipeline_ops/raw_data": (up_to("raw_data"), set()),
    "pipeline_ops/places/allocation_holder.py": (up_to("places"), {"psutil"}),
    "pipeline_ops/places": (up_to("places"), {"docker", "kubernetes", "urllib3", "websocket"}),
    "pipeline_ops/job/study.py": (up_to("job"), {"optuna"}),
    "pipeline_ops/job": (up_to("job"), set()),
    "pipeline_ops/registry": (up_to("registry"), set()),
    "pipeline_ops/retention": (up_to("retention"), set()),
    "pipeline_ops/planning": (up_to("planning"), set()),
    "pipeline_ops/orchestration/provider.py": (set(), set()),
    "pipeline_ops/orchestration/airflow_models.py": (up_to("errors"), {"airflow"}),
    "pipeline_ops/orchestration/airflow_internals.py": (
        up_to("errors") | {"orchestration.airflow_models"},
        {"airflow"},
    ),
    "pipeline_ops/orchestration/run_note.py": (
        up_to("contract") | {"orchestration.airflow_models", "orchestration.job_ends"},
        {"airflow", "sqlalchemy"},
    ),
    "pipeline_ops/orchestration/airflow_connections.py": (up_to("storage"), {"airflow"}),
    "pipeline_ops/orchestration/airflow_runs.py": (
        up_to("contract") | {"orchestration.airflow_connections", "orchestration.airflow_models"},
        {"sqlalchemy"},
    ),
    "pipeline_ops/orchestration/orphan_reaper.py": (
        SHARED | {"orchestration.airflow_runs", "orchestration.airflow_models"},
        {"sqlalchemy"},
    ),
    "pipeline_ops/orchestration/ui": (
        SHARED
        | {
            "orchestration.ui",
            "orchestration.orphan_reaper",
            "orchestration.airflow_runs",
            "orchestration.airflow_internals",
            "orchestration.airflow_models",
            "orchestration.run_note",
        },
        {"airflow", "fastapi", "sqlalchemy", "jinja2", "markupsafe", "starlette"},
    ),
    "pipeline_ops/orchestration": (
        up_to("planning") | {"orchestration"},
        {"airflow", "openlineage"},
    ),
    "pipeline_ops/launch/place_check.py": (SHARED | {"launch"}, {"packaging"}),
    "pipeline_ops/launch": (SHARED | {"launch"}, {"psutil"}),
    "pipeline_ops/served": (
        SHARED | {"served", "models", "input", "beam_jobs.stages"},
        TENSORFLOW | {"google", "anyio", "h11", "starlette", "uvicorn", "PIL"},
    ),
    "pipeline_ops/training": (
        SHARED | {"training", "models", "input", "served"},
        TENSORFLOW | {"PIL", "h5py", "pynvml"},
    ),
    "pipeline_ops/models": (SHARED | {"models", "input", "precision_recall"}, TENSORFLOW),
    "pipeline_ops/precision_recall.py": (set(), {"numpy"}),
    "pipeline_ops/input": (SHARED | {"input"}, TENSORFLOW | {"scipy"}),
    "pipeline_ops/evaluation": (
        SHARED | {"evaluation", "models", "input", "served", "precision_recall"},
        TENSORFLOW | {"jinja2", "markupsafe", "PIL", "sklearn", "scipy"},
    ),
    "pipeline_ops/export": (
        SHARED | {"export", "models", "input", "served"},
        TENSORFLOW | {"jinja2", "google", "onnxruntime", "tf2onnx"},
    ),
    "pipeline_ops/od_api": (SHARED | {"od_api", "beam_jobs"}, {"google", "yaml"}),
    "pipeline_ops/cli/drawing.py": (
        up_to("planning") | {"cli", "beam_jobs"},
        {"PIL", "cv2"},
    ),
    "pipeline_ops/cli/tensorboard_server.py": (set(), {"tensorboard"}),
    "pipeline_ops/cli": (
        up_to("planning")
        | {"orchestration.airflow_connections", "cli", "launch", "od_api"}
        | {"orchestration.job_handle", "orchestration.job_start"}  # without Airflow
        | {"beam_jobs.stages", "beam_jobs"},
        {"httpx", "jinja2", "packaging", "psutil", "rich", "typer", "yaml"},
    ),
    "beam_jobs/download.py": (SHARED | {"beam_jobs"}, {"tensorflow_datasets"}),
    "beam_jobs/sources/tfds.py": (SHARED | {"beam_jobs"}, {"tensorflow_datasets"}),
    "pipeline_ops/examples": (
        up_to("system") | {"examples"},
        {"tensorflow_datasets", "apache_beam", "numpy", "cv2", "sklearn", "PIL"},
    ),
    "beam_jobs/stages": (
        SHARED | {"beam_jobs"},
        {"numpy", "cv2", "simplejpeg", "PIL", "tensorflow"},
    ),
    "beam_jobs": (
        SHARED | {"beam_jobs"},
        {
            "apache_beam",
            "grpc",
            "numpy",
            "cv2",
            "simplejpeg",
            "PIL",
            "google_crc32c",
            "google",
            "pyarrow",
            "markupsafe",
        },
    ),
    "dags": (up_to("planning") | {"orchestration", "beam_jobs.stages"}, {"airflow"}),
}

FILES = sorted(path for top in (*OURS, "dags") for path in (ROOT / top).rglob("*.py"))


def imports(file: Path) -> set[str]:
    """The modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def package_of(module: str) -> str:
    """`pipeline_ops.launch.plan` is in `launch`; of beam_jobs, the stages count as a package of
    their own."""
    parts = module.split(".")
    if parts[0] == "beam_jobs":
        return "beam_jobs.stages" if parts[1:2] == ["stages"] else "beam_jobs"
    return parts[1] if len(parts) > 1 else ""


def crossings(place: str, file: Path) -> list[str]:
    """The imports of a file, as if it lay at `place`, that its package may not have."""
    ours, others = next(
        BORDERS[package] for package in BORDERS if f"{place}/".startswith(f"{package}/")
    )

    def may_import(module: str) -> bool:
        top = module.split(".")[0]
        if top not in OURS:
            return top in others | EVERYWHERE or top in sys.stdlib_module_names
        package = package_of(module)
        # A dotted entry is one module or one part of a package.
        parts = {name for name in ours if f"{module}.".startswith(f"pipeline_ops.{name}.")}
        is_beam = package.startswith("beam_jobs") and "beam_jobs" in ours
        return bool(package in {"", *ours} or parts or is_beam)

    return [f"{place} imports {name}" for name in sorted(imports(file)) if not may_import(name)]


def test_a_file_imports_only_what_its_package_may():
    places = {str(file.relative_to(ROOT)): file for file in FILES}
    found = [crossing for place, file in places.items() for crossing in crossings(place, file)]
    assert found == []


def test_optuna_is_imported_by_jobs_and_by_the_check_of_a_config_and_never_by_airflow():
    found = {
        str(file.relative_to(ROOT)) for file in FILES if "pipeline_ops.job.study" in imports(file)
    }
    assert found == {"pipeline_ops/launch/train.py", "pipeline_ops/cli/commands/validate.py"}


def test_two_files_import_what_is_not_airflows_public_interface():
    internal = ("airflow.models", "airflow.api_fastapi", "airflow.utils")
    found = {
        file.name for file in FILES if any(name.startswith(internal) for name in imports(file))
    }
    assert found == {"airflow_internals.py", "airflow_models.py", "run_note.py"}


def test_a_border_can_be_seen_to_be_crossed(tmp_path):
    """So that the test above can fail."""
    crossing = tmp_path / "crossing.py"
    crossing.write_text("def f():\n    from pipeline_ops.training import worker\n")
    place = "pipeline_ops/orchestration/crossing.py"
    assert crossings(place, crossing) == [f"{place} imports pipeline_ops.training"]


def calls(file: Path, name: str) -> list[ast.Call]:
    """The calls of a function in a file."""
    return [
        node
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    ]


def test_in_airflow_a_conf_reaches_a_config_through_run_config_only():
    """F6: `load_config` takes the author's overrides, so it gets nothing but the file there."""
    files = [file for file in FILES if file.relative_to(ROOT).parts[1] == "orchestration"]
    found = [(file, call) for file in files for call in calls(file, "load_config")]
    assert {file.name for file, _ in found} >= {"dags.py", "task_run.py"}
    assert [file.name for file, call in found if len(call.args) != 1 or call.keywords] == []


def test_no_file_names_a_package_index_or_a_path_of_the_machine_it_was_written_on():
    wanted = ["requirements.txt", "requirements-dev.txt", "pyproject.toml", "Makefile"]
    for name in wanted:
        text = (ROOT / name).read_text()
        assert "--index" not in text and "--extra-index" not in text, name
        assert "://" not in text.replace("file://", ""), name
