"""An unchanged run of the digits in a bucket, with and without latency.

The first run makes everything. Each later one finds all four tasks made. It is `trainyard run` with
an embedded Airflow, and the seconds are those from the trigger to the end of the run.

    python tests/bench/unchanged.py [--latency 0.2] [--rounds 3]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from measuring import ROOT, format_spread, make_parser

sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]
from cli.trainyard_command import Trainyard, cached_tasks, parse_summary  # noqa: E402
from object_servers.fault_proxy import FaultProxy  # noqa: E402
from object_servers.s3_server import S3Server  # noqa: E402

from pipeline_ops.planning.job_kinds import JOBS  # noqa: E402

_QUICK = {"train__epochs": 1, "train__workers": 1, "train__strategy": "one_device"}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of each request")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[float, list[float]] = {0.0: [], arguments.latency: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        S3Server() as server,
        FaultProxy(server.address) as proxy,
    ):
        server.make_bucket("bucket")
        os.environ.update(server.build_environment(proxy.address))
        trainyard = Trainyard(Path(folder), storage__root="s3://bucket/root", **_QUICK)
        first = parse_summary(trainyard.run())["seconds"]
        print(f"first run {first:.1f} s")
        for _ in range(arguments.rounds):
            for latency, seconds in found.items():
                with proxy.failing(latency_seconds=latency):
                    summary = parse_summary(trainyard.run())
                if cached_tasks(summary) != {*JOBS}:
                    raise SystemExit(f"only {sorted(cached_tasks(summary))} were made already")
                seconds.append(summary["seconds"])
    for latency, seconds in found.items():
        print(f"unchanged, {latency * 1000:.0f} ms for each request: {format_spread(seconds)} s")


if __name__ == "__main__":
    main()
