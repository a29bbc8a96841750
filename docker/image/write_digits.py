"""Writes the digits of scikit-learn into a bucket, once: `write_digits.py s3://BUCKET/FOLDER`.

The bucket is made if it does not exist. Endpoint and credentials are those of the environment.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import httpx
import obstore
from obstore.store import S3Store

from pipeline_ops.examples.digits import write_digits
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.request_cache import map_requests


def copy_digits(uri: str) -> None:
    bucket = S3Store(uri.removeprefix("s3://").partition("/")[0])
    made = httpx.put(obstore.sign(bucket, "PUT", "", timedelta(minutes=1)))
    if made.status_code != httpx.codes.CONFLICT:  # it is there
        made.raise_for_status()
    target = open_root(uri)
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder) / "digits"
        write_digits(digits)
        files = [file.relative_to(digits) for file in digits.rglob("*") if file.is_file()]
        if len(target.walk()) == len(files):
            print(f"{uri}: the {len(files)} images are there.")
            return
        map_requests(lambda file: (target / str(file)).upload(digits / file), files, parallel=16)
        print(f"{uri}: {len(files)} images written.")


if __name__ == "__main__":
    copy_digits(sys.argv[1].rstrip("/"))
