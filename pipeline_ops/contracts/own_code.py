"""Models, losses and metrics of the user's own: where their code is, and what of it belongs into a fingerprint.

    train:
      model: my_package.my_module:build

A module is found as Python finds any, or beside the config file. Of a module in a package, every source file of that package counts:
a model is seldom in one file. Nothing here runs that code, beyond the packages around a module; `pipeline_ops/models/own.py` does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.fingerprint import digest_code, versions_of
from pipeline_ops.contracts.model_catalogue import is_own

_FRAMEWORKS = ("tf-slim", "tf-keras")
"""What a model may be made with beside Keras."""


def code_of(train: Train, folder: Path) -> dict[str, str]:
    """Digests of the source files of the user's own modules, by path below the folder that Python finds them in.

    Args:
      train: the training section.
      folder: of the config file.

    Raises:
      ConfigError: there is no such module.
    """
    digests: dict[str, str] = {}
    for key, module in _modules(train).items():
        origin = find(module, folder)
        if origin is None:
            raise ConfigError(f"{key}: there is no module {module}; install its package, put its folder into PYTHONPATH for Airflow and for the "
                              f"job, or put it beside the config in {folder}")
        depth = module.count(".") + (origin.name == "__init__.py")
        root = origin.parents[depth]
        digests |= digest_code([str(origin.parent.relative_to(root)) if depth else origin.name], root=root)
    return digests


def versions_of_own(train: Train) -> dict[str, str]:
    """Versions of the installed distributions that the modules come with, and of what they may be made with."""
    modules = _modules(train)
    if not modules:
        return {}
    distributions = importlib.metadata.packages_distributions()
    found = {name for module in modules.values() for name in distributions.get(module.partition(".")[0], ())}
    return versions_of(sorted({*found, *_FRAMEWORKS}))


def find(module: str, folder: Path) -> Path | None:
    """The source file of a module, or None."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package around it can't be imported, or there is none
        spec = None
    if spec and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    beside = folder.joinpath(*module.split("."))
    return next((file for file in (beside.with_suffix(".py"), beside / "__init__.py") if file.is_file()), None)


def _modules(train: Train) -> dict[str, str]:
    """By the key of the config that names one of them."""
    paths = {"train.model": train.model if is_own(train.model) else None, "train.loss": train.loss}
    paths |= {f"train.metrics.{index}": path for index, path in enumerate(train.metrics)}
    return {key: path.partition(":")[0] for key, path in paths.items() if path}
