"""Functions of the user's own: models, losses and metrics, named as `my_package.my_module:function`.

Their module is found as Python finds any, and beside the config file. What of their code belongs into a fingerprint is in
`contracts/own_code.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_ops.contracts.errors import ConfigError


def load_function(path: str, key: str, folder: Path) -> Callable[..., Any]:
    """The function behind a module path.

    Args:
      path: `module:function`.
      key: of the config, for messages.
      folder: of the config file.

    Raises:
      ConfigError: the module can't be imported, or has no such function.
    """
    module_name, _, attribute = path.partition(":")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing there hides an installed package
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # somebody else's code may raise anything
        raise ConfigError(f"{key}: the module {module_name} can't be imported: {type(error).__name__}: {error}; is its package installed for the "
                          f"job, or its folder in PYTHONPATH, or is it beside the config in {folder}?") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ConfigError(f"{key}: the module {module_name} has no function {attribute!r}")
    return found
