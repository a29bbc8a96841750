"""Places of raw data, through fsspec: finds the driver for a URI and translates its errors.

fsspec knows more places than `storage.root` can be in, such as web servers. Nothing is written.

The driver finds endpoint and credentials itself. For S3, they come from the environment
(`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, ...) and from AWS's files, for any driver
from fsspec's own configuration. None of them belong in a pipeline's YAML.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.outage import StoreAway
from pipeline_ops.storage.store_options import Patience, get_patience

if TYPE_CHECKING:
    import fsspec

_S3 = ("s3", "s3a")
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""The variables that its driver reads."""
_AWAY = re.compile("^(?!.*Certificate).*(Connect|Disconnect|Timeout|ClientOSError)")
"""The names of the drivers' errors when a store gives no answer."""
_DRIVERS = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "requests", "urllib3")


def get_file_system(uri: str) -> fsspec.AbstractFileSystem:
    """The driver for a URI. It caches no listing, because other processes write there, too.

    Raises:
      ConfigError: fsspec knows no such scheme, or the driver's package is not installed.
    """
    import fsspec  # here, because every DAG file reads configs, and few of them name a store

    scheme = uri.partition("://")[0]
    for driver in _DRIVERS:
        logging.getLogger(driver).setLevel(
            logging.WARNING
        )  # each driver logs the source of its credentials for every connection
    try:
        driver = fsspec.filesystem(
            scheme, use_listings_cache=False, **_make_options(scheme, get_patience())
        )
    except ImportError as error:
        raise ConfigError(
            f"{uri}: {error}. Raw data need that package. Install it, or the extra s3, gs or "
            "azure: for example pip install '.[s3]' in a clone of Trainyard."
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{uri}: {error}. Use a local folder, or a URI such as s3://bucket/folder."
        ) from None
    _limit_tries(driver, get_patience())
    return driver


def describe_place(uri: str) -> str:
    """Describes a URI for a message, with the endpoint if the environment names one."""
    if uri.partition("://")[0] not in _S3:
        return uri
    endpoint = next(filter(None, map(os.environ.get, _S3_ENDPOINTS)), None)
    return f"{uri} at {endpoint}" if endpoint else uri


def _make_options(scheme: str, patience: Patience) -> dict[str, Any]:
    """Makes options of the driver: how long it waits for a silent store. Only S3's has some.

    An option of the same name would replace that of fsspec's own configuration, so both are merged.
    """
    if scheme not in _S3:
        return {}
    from fsspec.config import conf

    waiting = {
        "connect_timeout": patience.silence,
        "read_timeout": patience.silence,
        "retries": {"max_attempts": patience.retries // patience.silence - 1},
    }
    configured = [conf.get(name, {}).get("config_kwargs", {}) for name in _S3]
    return {"config_kwargs": {**waiting, **configured[0], **configured[1]}}


def _limit_tries(driver: Any, patience: Patience) -> None:
    """Limits the tries that a driver adds to those of its client, as those of S3 and GCS do."""
    if hasattr(driver, "retries"):
        driver.retries = min(driver.retries, 1 + patience.retries // patience.silence)


@contextlib.contextmanager
def translate_errors(uri: str) -> Iterator[None]:
    """Translates the driver's errors into ours. FileNotFoundError stays as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise ConfigError(
            f"{describe_place(uri)}: {error}. Check the credentials and their rights."
        ) from error
    except OSError as error:
        raise _make_unreachable_error(uri, error) from error
    except Exception as error:  # the driver's own, which is not imported here
        if "Credentials" in type(error).__name__:
            raise ConfigError(
                f"{uri}: {error}. The driver looks for them in the environment and its own files."
            ) from error
        if type(error).__module__.partition(".")[0] in _DRIVERS:
            raise _make_unreachable_error(uri, error) from error
        raise


def _make_unreachable_error(uri: str, error: Exception) -> MachineError:
    kind = StoreAway if _AWAY.search(type(error).__name__) else MachineError
    text = str(error).rstrip(".")
    return kind(
        f"{describe_place(uri)}: {text}", "Check that the store can be reached, then retry."
    )
