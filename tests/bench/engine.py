"""The speed of the preprocess job on Flink with two workers, next to a hand-written program.

    python tests/bench/engine.py [--cache FOLDER] [--images 12000] [--rounds 3] [--engine flink]

It starts a cluster on this machine: two TaskManagers with one slot each, a pool of Beam's workers
for each, and a job server. Both programs read and write folders of this machine. An engine needs
about ten seconds to start a job and its workers. So the running time of the job begins with the
first image that it reports, and ends with the last one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS.parent), str(_TESTS / "support")]
from engines.cluster import Cluster  # noqa: E402
from engines.fetch import find_programs  # noqa: E402
from engines.flink import FlinkCluster  # noqa: E402
from engines.spark import SparkCluster  # noqa: E402
from measuring import format_spread, make_parser, run_job  # noqa: E402
from photographs import make_photographs  # noqa: E402
from preprocess import (  # noqa: E402
    ENCODING,
    MEMORY,
    RESIZE,
    link_subset,
    load_preprocess_config,
    run_other,
)

from pipeline_ops.contract.progress import ProgressReader  # noqa: E402

WORKERS = 2
_MANY = 3
"""Names of each image, because the progress is looked at once a second."""
_CLUSTERS: dict[str, type[Cluster]] = {"flink": FlinkCluster, "spark": SparkCluster}


def run_on_engine(raw: Path, folder: Path, cluster: Cluster) -> tuple[float, float]:
    """Images per second while running, and the seconds of the whole task."""
    runner = {
        "name": cluster.name,
        "endpoint": cluster.job_endpoint,
        "rest_address": cluster.url,
        "worker_pool": cluster.pool,
        "shared_disk": True,
        **({"options": {"parallelism": WORKERS}} if cluster.name == "flink" else {}),
    }
    config = load_preprocess_config(folder, raw, RESIZE, runner)
    cost, attempt = run_job("preprocess", config, {})
    moments = [moment for moment in ProgressReader(attempt.progress).read_new() if moment.done]
    shown = [moment for moment in moments if moment.phase == "preprocess"]
    first, last = shown[0], next(moment for moment in shown if moment.done == moment.total)
    return (last.done - first.done) / (last.time - first.time), cost.wall


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument(
        "--cache", type=Path, default=Path(".trainyard/bench"), help="where the images are kept"
    )
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--engine", choices=[*_CLUSTERS], default="flink")
    arguments = parser.parse_args()
    name, count = arguments.engine, arguments.images
    if find_programs(name) is None:
        print(f"{name} is not fetched: PYTHONPATH=. python tests/support/engines/fetch.py {name}")
        return
    cache, many = arguments.cache.resolve(), _MANY * count
    photographs = make_photographs(cache / f"photographs-{count}", count)
    raw = link_subset(photographs, cache / f"linked-{many}", list(range(count)), many)
    ratios = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            other = run_other("by_hand.py", raw, Path(folder), "resize", ENCODING, WORKERS)
        with (
            _CLUSTERS[name](num_nodes=WORKERS) as cluster,
            tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        ):
            running, seconds = run_on_engine(raw, Path(folder), cluster)
        ratios.append(running / other.images_per_second)
        print(
            f"{name} {number + 1}/{arguments.rounds}\n  other {other}\n"
            f"  ours  {running:7.0f} images/s running, {seconds:.1f} s as a whole task",
            flush=True,
        )
    print(f"=> resize on {name} / by hand: {format_spread(ratios)} running; goal 0.80")


if __name__ == "__main__":
    main()
