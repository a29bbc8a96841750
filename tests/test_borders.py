"""The import borders of the tree: who may import whom, read from every file."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

OURS = ("pipeline_ops", "beam_jobs")
TENSORFLOW = {"tensorflow", "keras", "numpy"}
EVERYWHERE = {"pydantic"}  # the language of the contracts
BORDERS: dict[str, tuple[set[str], set[str]]] = {
    # package: (our packages, other distributions) that it may import at any place of any file
    "pipeline_ops/contracts/minisign.py": ({"contracts"}, {"cryptography"}),
    "pipeline_ops/contracts": ({"contracts"}, {"croniter", "yaml", "fsspec", "google_crc32c", "jinja2", "markupsafe"}),
    "pipeline_ops/operators": ({"contracts", "operators"}, {"airflow", "asgiref", "openlineage"}),
    "pipeline_ops/launch": ({"contracts", "launch"}, set()),
    "pipeline_ops/training": ({"contracts", "training", "models", "input"}, TENSORFLOW | {"PIL"}),
    "pipeline_ops/models": ({"contracts", "models"}, TENSORFLOW),
    "pipeline_ops/input": ({"contracts", "input"}, TENSORFLOW),
    "pipeline_ops/evaluation": ({"contracts", "evaluation", "models", "input"}, TENSORFLOW | {"jinja2", "markupsafe", "PIL", "faster_coco_eval"}),
    "pipeline_ops/export": ({"contracts", "export", "models", "input"},
                            TENSORFLOW | {"google", "onnxruntime", "tf2onnx", "anyio", "h11", "starlette", "uvicorn"}),
    "pipeline_ops/cli/compare.py": ({"contracts", "cli", "evaluation"}, {"rich"}),
    "pipeline_ops/ui": ({"contracts", "ui"}, {"airflow", "fastapi", "sqlalchemy", "jinja2", "markupsafe"}),
    "pipeline_ops/od_api": ({"contracts", "od_api", "beam_jobs"}, {"yaml"}),
    "pipeline_ops/cli": ({"contracts", "cli", "launch", "od_api", "beam_jobs.stages", "beam_jobs"}, {"httpx", "rich", "yaml"}),
    "beam_jobs/sources/tfds.py": ({"contracts", "beam_jobs"}, {"tensorflow_datasets"}),
    "beam_jobs/sources/digit_scenes_builder.py": ({"contracts", "beam_jobs"}, {"tensorflow_datasets", "apache_beam"}),
    "beam_jobs": ({"contracts", "beam_jobs"},
                  {"apache_beam", "numpy", "cv2", "simplejpeg", "PIL", "google_crc32c", "google", "sklearn", "markupsafe"}),
    "dags": ({"contracts", "operators", "beam_jobs.stages"}, {"airflow"}),
}

FILES = sorted(path for package in BORDERS for path in (ROOT / package).rglob("*.py"))


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
    """`pipeline_ops.launch.plan` is in `launch`; of beam_jobs, the stages count as a package of their own."""
    parts = module.split(".")
    if parts[0] == "beam_jobs":
        return "beam_jobs.stages" if parts[1:2] == ["stages"] else "beam_jobs"
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_package_may(file):
    place = str(file.relative_to(ROOT))
    ours, others = next(BORDERS[package] for package in BORDERS if f"{place}/".startswith(f"{package}/"))
    for module in imports(file):
        top = module.split(".")[0]
        if top in OURS:
            package = package_of(module)
            assert package in ours or (package.startswith("beam_jobs") and "beam_jobs" in ours) or package == "", f"{place} imports {module}"
        else:
            assert top in others | EVERYWHERE or top in sys.stdlib_module_names, f"{place} imports {module}"


def test_a_border_can_be_seen_to_be_crossed(tmp_path):
    """So that the test above can fail."""
    crossing = tmp_path / "crossing.py"
    crossing.write_text("def f():\n    from pipeline_ops.training import worker\n")
    assert {package_of(module) for module in imports(crossing)} == {"training"}


def calls(file: Path, name: str) -> list[ast.Call]:
    """The calls of a function in a file."""
    return [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name]


@pytest.mark.parametrize("package", ["operators", "ui"])
def test_in_airflow_a_conf_reaches_a_config_through_run_config_only(package):
    """F6: `load_config` takes the author's overrides, so it gets nothing but the file there."""
    found = [(file, call) for file in (ROOT / "pipeline_ops" / package).rglob("*.py") for call in calls(file, "load_config")]
    assert found
    assert [file.name for file, call in found if len(call.args) != 1 or call.keywords] == []


def test_no_file_names_a_package_index_or_a_path_of_the_machine_it_was_written_on():
    wanted = ["requirements.txt", "requirements-dev.txt", "pyproject.toml", "Makefile"]
    for name in wanted:
        text = (ROOT / name).read_text()
        assert "--index" not in text and "--extra-index" not in text, name
        assert "://" not in text.replace("file://", ""), name
