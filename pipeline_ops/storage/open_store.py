"""Opens the store of a path or URI.

A URI does not say how to reach its bucket. A process of Airflow serves many pipelines, and takes
the options from the config of the one that it works for. A job serves one pipeline, and has its
options in its environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_store import LocalPath
from pipeline_ops.storage.store_options import SCHEMES, StoreOptions
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from pipeline_ops.storage.object_store import ObjectPath

STORES_VARIABLE = "TRAINYARD_STORES"
_STORES = TypeAdapter(dict[str, StoreOptions])


def is_remote(path_or_uri: str | Path) -> bool:
    """Returns whether this is a URI of an object store, and not a local folder."""
    return "://" in str(path_or_uri) and not str(path_or_uri).startswith("file://")


def check_no_credentials(uri: str) -> str:
    """Returns a URI that holds no user name or password. The ValueError does not repeat them."""
    scheme, separator, rest = uri.partition("://")
    if separator and "@" in rest.partition("/")[0]:
        raise ValueError(
            f"a {scheme}:// URI must not hold a user name or a password, which all readers of this "
            "file can see. Set them in the driver's environment or in its own files."
        )
    return uri


def make_store_environment(root: StorePath) -> dict[str, str]:
    """The variables with which a child process reaches a root, with credentials of a connection.

    Raises ConfigError if the connection cannot be read.
    """
    if root.options is None:
        return {}
    inherited = root.options.model_dump(exclude={"connection"})
    stores = json.dumps({str(root): inherited})
    return root.options.read_credentials(str(root)) | {STORES_VARIABLE: stores}


def _find_options(uri: str) -> StoreOptions:
    """The options in the environment of this process, of the longest root that holds a URI."""
    known = _STORES.validate_json(os.environ.get(STORES_VARIABLE, "{}"))
    roots = [root for root in known if f"{uri}/".startswith(f"{root}/")]
    return known[max(roots, key=len)] if roots else StoreOptions()


def open_root(root: str | Path, options: StoreOptions | None = None) -> StorePath:
    """The root of a store, a local folder or a URI.

    Without options, the environment says how to reach a bucket. Raises ConfigError if the URI is
    not one of a bucket.
    """
    if not is_remote(root):
        return LocalPath(os.path.abspath(str(root).removeprefix("file://")))
    uri = str(root).rstrip("/")
    scheme, _, rest = uri.partition("://")
    if scheme not in SCHEMES or not rest or "::" in uri:
        raise ConfigError(
            f"{uri[:200]!r} is not a place for artifacts. Use a folder, or a URI such as "
            f"{', '.join(f'{each}://bucket/folder' for each in SCHEMES)}."
        )
    return open_bucket(uri, options)


def open_path(uri: str | Path, options: StoreOptions | None = None) -> StorePath:
    """A file or folder by its path or URI, like `open_root`. Its folder is its store's root."""
    if not is_remote(uri):
        uri = os.path.abspath(str(uri).removeprefix("file://"))
    folder, _, name = str(uri).rstrip("/").rpartition("/")
    return open_root(folder or "/", options) / name


def open_near(root: StorePath, uri: str) -> StorePath:
    """A file or folder by its path or URI, with the options of a root if it is below that."""
    return open_path(uri, root.options if uri.startswith(f"{root}/") else None)


def open_bucket(root: str, options: StoreOptions | None = None) -> ObjectPath:
    """The root of a URI like `open_root`, also of one on a web server, where it is only read."""
    # Here, because most processes use a folder only.
    from pipeline_ops.storage.object_store import ObjectPath

    return ObjectPath(root, _find_options(root) if options is None else options)
