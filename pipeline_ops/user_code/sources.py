"""Sources and transforms of the user's own: the place and the fingerprint of their code.

The module is found as Python finds any module, or next to the config file. This module runs none of
that code, except for the packages around a module. `beam_jobs/sources/user_source.py` runs it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from pipeline_ops.config.sources import (
    ENTRY_POINT_GROUP,
    OwnCodeSource,
    Source,
    find_module_path,
    find_publishers,
)
from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.planned_training import UserCode
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.modules import (
    check_size,
    find_distributions,
    find_module,
    read_files,
    read_module,
)


def find_source_path(source: OwnCodeSource) -> str:
    """Returns `module:function` of a source, or `module:Class` of a transform.

    Raises:
      ConfigError: no installed package has an entry point of this name, or several have.
    """
    path = find_module_path(ENTRY_POINT_GROUP, source.code_name)
    if path is None:
        raise ConfigError(
            f"preprocess.source.type: no installed package has the entry point {source.code_name} "
            f"in the group {ENTRY_POINT_GROUP}. Install the package, or name the source as "
            "module:function."
        )
    return path


def digest_source_code(source: Source, folder: Path) -> dict[str, str]:
    """Returns the digests of `read_source_code`, without those of `preprocess.files`."""
    return read_source_code(source, (), folder).digests


def read_source_code(source: Source, files: Sequence[str], folder: Path) -> UserCode:
    """Reads the files of a user's source and of all that it imports, and `preprocess.files`.

    A source of the catalogue has none here, because it is part of this project's code.

    Args:
      source: the section `preprocess.source`.
      files: the patterns of `preprocess.files`.
      folder: the folder of the config file.

    Raises:
      ConfigError: there is no such module, or a file is not valid Python, or they are too large.
    """
    code = read_files(files, "preprocess.files", folder)
    if isinstance(source, OwnCodeSource):
        module = find_source_path(source).partition(":")[0]
        origin = find_module(module, folder)
        if origin is None:
            raise ConfigError(
                f"preprocess.source.{source.code_key}: there is no module {module}. Put it next to "
                f"the config in {folder}, or install its package for both Airflow and the job."
            )
        try:
            code |= read_module(module, origin, folder)
        except ConfigError as error:
            error.add_location(f"preprocess.source.{source.code_key}")
            raise
    return check_size(code, "preprocess.files", folder)


def find_source_versions(source: Source) -> dict[str, str]:
    """Returns versions of the installed distributions that a user's source comes from."""
    if not isinstance(source, OwnCodeSource):
        return {}
    module = find_source_path(source).partition(":")[0]
    published = find_publishers(ENTRY_POINT_GROUP, source.code_name)
    return find_versions(sorted(published | find_distributions([module])))


@contextlib.contextmanager
def find_modules_in(folder: Path) -> Iterator[None]:
    """Lets Python find the modules in a folder while the block runs, and forgets them afterwards.

    Two configs in different folders may have modules of the same name.
    """
    if str(folder) in sys.path:
        yield
        return
    before = set(sys.modules)
    sys.path.append(str(folder))  # last, so that nothing there hides an installed package
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        new = set(sys.modules) - before
        tops = {name.partition(".")[0] for name in new}
        own = {name for name in tops & sys.modules.keys() if _is_in(sys.modules[name], folder)}
        for name in new:
            if name.partition(".")[0] in own:
                del sys.modules[name]


def _is_in(module: ModuleType, folder: Path) -> bool:
    """Returns whether a module or package without parent lies directly in a folder."""
    places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None) or ""]
    return any(Path(place).parent == folder for place in places)
