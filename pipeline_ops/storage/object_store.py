"""Object stores through fsspec: finds the driver for a URI and translates its errors into ours.

The driver finds endpoint and credentials itself. For S3, they come from the environment
(`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, ...) and from AWS's files, for any driver
from fsspec's own configuration. None of them belong in a pipeline's YAML.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline_ops.errors import ConfigError, MachineError

if TYPE_CHECKING:
    import fsspec

_DRIVERS = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "requests", "urllib3")
STORES = ("s3",)
"""The schemes whose drivers are known to refuse the second of two conditional puts."""
_EXTRAS = {
    "s3": "trainyard[s3]",
    "s3a": "trainyard[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "hdfs": "pyarrow",
}


def is_remote(place: str) -> bool:
    """Returns whether a place is in an object store, and not a local folder."""
    return "://" in place


def file_system(place: str) -> fsspec.AbstractFileSystem:
    """The driver for a URI. It caches no listing, because other processes write there, too.

    Raises:
      ConfigError: fsspec knows no such scheme, or the driver's package is not installed.
    """
    import fsspec  # here, because every DAG file reads configs, and few of them name a store

    scheme = place.partition("://")[0]
    for driver in _DRIVERS:
        logging.getLogger(driver).setLevel(
            logging.WARNING
        )  # each driver logs the source of its credentials for every connection
    try:
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        raise ConfigError(
            f"{place}: {error}; install {_EXTRAS.get(scheme, 'the package that it names')}"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{place}: {error}; a place is a local folder, or a URI such as s3://bucket/folder"
        ) from None


def is_known(place: str) -> bool:
    """Returns whether fsspec knows the scheme of a URI. Its driver need not be installed."""
    from fsspec.registry import known_implementations

    return place.partition("://")[0] in known_implementations


def refuse_credentials(place: str) -> str:
    """Returns a place that holds no user name or password.

    Raises:
      ValueError: the place holds one. The message does not repeat it.
    """
    scheme, separator, rest = place.partition("://")
    if separator and "@" in rest.partition("/")[0]:
        raise ValueError(
            f"a {scheme}:// URI must not hold a user name or a password, which everybody who sees "
            "this file can read; give them to the driver by its environment or its own files"
        )
    return place


@contextlib.contextmanager
def translated(place: str) -> Iterator[None]:
    """Translates the driver's errors into ours.

    FileNotFoundError and FileExistsError stay as they are.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except PermissionError as error:
        raise ConfigError(
            f"{place}: {error}; check the credentials, and what they may do"
        ) from error
    except OSError as error:
        if error.errno == errno.EINVAL and "recondition" in str(
            error
        ):  # a store that does not name the condition
            raise FileExistsError(errno.EEXIST, str(error)) from error
        raise _unreachable(place, error) from error
    except Exception as error:  # the driver's own, which is not imported here
        if "Credentials" in type(error).__name__:
            raise ConfigError(
                f"{place}: {error}; the driver looks for them in the environment "
                "and in its own files"
            ) from error
        if type(error).__module__.partition(".")[0] in _DRIVERS:
            raise _unreachable(place, error) from error
        raise


def _unreachable(place: str, error: Exception) -> MachineError:
    return MachineError(f"{place}: {error}; see whether the store can be reached, then retry")
