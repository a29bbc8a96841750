"""Writes the digits of scikit-learn into a bucket, once: `write_digits.py s3://BUCKET/FOLDER`.

The bucket is made if it does not exist. Endpoint and credentials are those of the environment.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import s3fs

from pipeline_ops.examples.digits import write_digits


def copy_digits(uri: str) -> None:
    files = s3fs.S3FileSystem()
    bucket = uri.removeprefix("s3://").partition("/")[0]
    if not files.exists(bucket):
        files.mkdir(bucket)
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder) / "digits"
        write_digits(digits)
        count = sum(file.is_file() for file in digits.rglob("*"))
        if len(files.find(uri)) == count:
            print(f"{uri}: the {count} images are there.")
            return
        files.put(f"{digits}/", f"{uri}/", recursive=True)
        print(f"{uri}: {count} images written.")


if __name__ == "__main__":
    copy_digits(sys.argv[1].rstrip("/"))
