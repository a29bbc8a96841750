"""The limit: what a person would write for one machine and one purpose, with two processes and
nothing to spare.

It reads, checks headers, decodes, resizes, encodes, serialises, writes TFRecords by rename, and
does nothing else: no statistics, no checksums of inputs, no quarantine, no progress, no retry.
Started by `preprocess.py`.

    python tests/bench/by_hand.py RAW OUT pass|resize png|jpeg WORKERS
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import struct
import sys
import time
from pathlib import Path

import cv2
import google_crc32c
import numpy as np
import simplejpeg

from beam_jobs.io.example import pack

HEIGHT, WIDTH = 240, 320
NUM_SHARDS = 64


def read(path: bytes) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 24)
    finally:
        os.close(file)


def check(data: bytes) -> bytes | None:
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    return data if height * width < 50e6 and data.rfind(b"\xff\xd9", -1024) >= 0 else None


def resize(data: bytes, encoding: str) -> bytes:
    image = cv2.resize(
        simplejpeg.decode_jpeg(data, "RGB"), (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA
    )
    if encoding == "jpeg":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(image), 90, "RGB", "420")
    return cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [16, 1])[1].tobytes()


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def build(
    out: Path, chain: str, encoding: str, shard: tuple[int, list[tuple[str, bytes, int]]]
) -> int:
    index, records = shard
    final, count = out / f"train-{index:05d}-of-{NUM_SHARDS:05d}.tfrecord", 0
    with open(final.with_suffix(".tmp"), "wb", buffering=1 << 20) as file:
        for key, path, label in records:
            data = check(read(path))
            if data is None:
                continue
            if chain == "resize":
                data = resize(data, encoding)
            else:
                simplejpeg.decode_jpeg(data, "RGB")  # the only way to find damage
            record = pack(
                {"image/encoded": data, "image/key": key.encode(), "image/class/label": label}
            )
            length = struct.pack("<Q", len(record))
            file.write(b"".join((length, masked(length), record, masked(record))))
            count += 1
    os.replace(final.with_suffix(".tmp"), final)
    return count


def main(raw: Path, out: Path, chain: str, encoding: str, workers: int) -> None:
    cv2.setNumThreads(1)
    labels = sorted(folder.name for folder in raw.iterdir())
    records = [
        (f"{label}/{entry.name}", os.fsencode(entry.path), number)
        for number, label in enumerate(labels)
        for entry in os.scandir(raw / label)
    ]
    records.sort(key=lambda record: hashlib.blake2b(record[0].encode(), digest_size=8).digest())
    shards = [
        (
            index,
            records[index * len(records) // NUM_SHARDS : (index + 1) * len(records) // NUM_SHARDS],
        )
        for index in range(NUM_SHARDS)
    ]
    out.mkdir(parents=True)
    start = time.monotonic()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        images = sum(
            pool.imap_unordered(functools.partial(build, out, chain, encoding), shards, chunksize=1)
        )
    print(json.dumps({"images": images, "running_seconds": time.monotonic() - start}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
