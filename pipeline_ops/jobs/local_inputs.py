"""The files of a job's inputs on this host.

The inputs of a job are artifacts in the store. If that is a folder, they are read where they are.
The files that a job needs from a bucket are fetched into this host's cache, and compared with the
manifest on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline_ops.artifacts.manifest import (
    NAME,
    Input,
    Manifest,
    ManifestFile,
    locate_file,
    read_manifest,
    write_manifest,
)
from pipeline_ops.config.train import InputOptions
from pipeline_ops.errors import MachineError
from pipeline_ops.jobs.host_dataset import open_host_cache
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.open_store import is_remote, open_path
from pipeline_ops.storage.snapshot import map_requests

Select = Callable[[str], bool]
"""Decides by a file's path in its artifact whether a job needs it."""


def use_local_inputs(request: Request, needed: Mapping[str, Select]) -> Request:
    """The request with inputs on this host.

    Args:
      request: the request. Inputs that it lacks are ignored.
      needed: the files that the job reads, for each input.

    Raises:
      MachineError: a file is missing or damaged, or the store or the disk failed.
      DataError: there is no such manifest.
    """
    local = {
        name: fetch_input(entry, needed[name])
        for name, entry in request.inputs.items()
        if name in needed
    }
    return request.model_copy(update={"inputs": request.inputs | local})


def fetch_input(entry: Input, is_needed: Select) -> Input:
    """An input whose needed files are on this host. Raises as `use_local_inputs` does."""
    if not is_remote(entry.uri):
        return entry
    manifest = read_manifest(open_path(entry.uri))
    files = [file for file in manifest.files if is_needed(file.path)]
    folder = open_host_cache(InputOptions()).get_or_create(
        "artifact",
        compute_digest([manifest.digest, [file.path for file in files]]),
        lambda folder: _fetch(entry.uri, manifest, files, folder),
    )
    return entry.model_copy(update={"uri": str(folder / NAME)})


def _fetch(uri: str, manifest: Manifest, files: list[ManifestFile], folder: Path) -> None:
    """Fetches files into a folder, with a manifest that finds all of them there."""

    def fetch(file: ManifestFile) -> None:
        place = locate_file(open_path(uri), file)
        try:
            found = place.download(folder / file.path, file.num_bytes)
        except FileNotFoundError:
            raise MachineError(
                f"{place} is missing, but {uri} lists it. Run its task again."
            ) from None
        if not file.has_content(found):
            raise MachineError(
                f"{place} has another content than {uri} lists. Remove it, and run its task again."
            )

    map_requests(fetch, files)
    here = [file.model_copy(update={"stored_at": None}) for file in manifest.files]
    write_manifest(folder, manifest.model_copy(update={"files": here}))
