"""Opens the store of a path or URI.

A URI in a manifest or in a request does not say how to reach its bucket. The options of a root are
therefore registered once in each process: when it reads a config, or by a variable in its
environment.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from pydantic import TypeAdapter

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_store import LocalStore
from pipeline_ops.storage.store import Store
from pipeline_ops.storage.store_options import SCHEMES, StoreOptions
from pipeline_ops.storage.store_path import StorePath

STORES_VARIABLE = "TRAINYARD_STORES"
_options: dict[str, StoreOptions] = {}


def is_remote(path_or_uri: str | Path) -> bool:
    """Returns whether this is a URI of an object store, and not a local folder."""
    return "://" in str(path_or_uri) and not str(path_or_uri).startswith("file://")


def validate_no_credentials(uri: str) -> str:
    """Returns a URI that holds no user name or password.

    Raises:
      ValueError: the URI holds one. The message does not repeat it.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and "@" in rest.partition("/")[0]:
        raise ValueError(
            f"a {scheme}:// URI must not hold a user name or a password, which all readers of this "
            "file can see. Set them in the driver's environment or in its own files."
        )
    return uri


def register_store(root: str, options: StoreOptions) -> None:
    """Sets the options for all URIs below a root, for this process."""
    _options[root.rstrip("/")] = options


def make_store_environment(root: str) -> dict[str, str]:
    """The variables with which a child process reaches a root, with credentials of a connection.

    Raises:
      ConfigError: the connection cannot be read.
    """
    if not is_remote(root):
        return {}
    options = find_options(root)
    inherited = options.model_dump(exclude={"connection"})
    return options.read_credentials(root) | {STORES_VARIABLE: json.dumps({root: inherited})}


def find_options(uri: str) -> StoreOptions:
    """The options of the longest registered root that holds a URI."""
    known = _parse_stores(os.environ.get(STORES_VARIABLE, "{}")) | _options
    roots = [root for root in known if f"{uri}/".startswith(f"{root}/")]
    return known[max(roots, key=len)] if roots else StoreOptions()


@functools.lru_cache(maxsize=8)
def _parse_stores(text: str) -> dict[str, StoreOptions]:
    return TypeAdapter(dict[str, StoreOptions]).validate_json(text)


def open_root(root: str | Path) -> StorePath:
    """The root of a store.

    Raises:
      ConfigError: the URI is not one of a bucket.
    """
    if not is_remote(root):
        return StorePath(LocalStore(Path(os.path.abspath(str(root).removeprefix("file://")))))
    return StorePath(_open_bucket(str(root).rstrip("/")))


def open_path(uri: str | Path) -> StorePath:
    """A file or folder by its path or URI. The folder that holds it is its store's root.

    Raises the errors of `open_root`.
    """
    if is_remote(uri):
        folder, _, name = str(uri).rstrip("/").rpartition("/")
        return open_root(folder) / name
    path = Path(os.path.abspath(str(uri).removeprefix("file://")))
    return open_root(path.parent) / path.name


def _open_bucket(root: str) -> Store:
    scheme, _, rest = root.partition("://")
    if scheme not in SCHEMES or not rest or "::" in root:
        raise ConfigError(
            f"{root[:200]!r} is not a place for artifacts. Use a folder, or a URI such as "
            f"{', '.join(f'{each}://bucket/folder' for each in SCHEMES)}."
        )
    # Here, because most processes use a folder only.
    from pipeline_ops.storage.object_store import ObjectStore

    return ObjectStore(root, find_options(root))
