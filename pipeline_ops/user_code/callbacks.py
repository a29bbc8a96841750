"""The code of the user's own callbacks, for the fingerprint, because it can change the result."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import digest_code


def callback_code(paths: Iterable[str], folder: Path) -> dict[str, str]:
    """Returns digests of the source files of callbacks, by module.

    Modules are found as Python finds them, or next to the config in `folder`. The worker reports
    those that cannot be found.
    """
    digests = {}
    for module in sorted({path.partition(":")[0] for path in paths}):
        origin = _origin_of(module, folder)
        if origin is not None:
            digests[module] = digest_code([origin.name], root=origin.parent)[origin.name]
    return digests


def _origin_of(module: str, folder: Path) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package around it can't be imported
        spec = None
    if spec and spec.origin:
        return Path(spec.origin)
    beside = folder.joinpath(*module.split(".")).with_suffix(".py")
    return beside if beside.exists() else None
