"""A folder of raw data, and a source read from it without Beam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from beam_jobs.sources import read_records
from pipeline_ops.config.sources import AnySource
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root


class Raw:
    """Files below a folder; `read` reads them as a source of the config would."""

    def __init__(self, folder: Path):
        self.folder = folder / "source"
        self.folder.mkdir()
        self._listings = open_root(folder) / "source listings"

    def add(self, name: str, content: bytes | str = b"image") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def read(self, **source: Any):
        """Records by key, and rejected (reason, detail) by key."""
        config = TypeAdapter(AnySource).validate_python({"path": str(self.folder), **source})
        records, rejected, *_ = read_records(
            config, list_raw_files(Path(config.folder), self._listings, config.file_patterns)
        )
        assert [record.key for record in records] == sorted({record.key for record in records})
        return {record.key: record for record in records}, {
            record.key: (record.reason, record.detail) for record in rejected
        }


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(tmp_path)
