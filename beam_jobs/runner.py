"""The engine that runs the Beam graph: the embedded one on this host, or another Beam runner.

The graph does not depend on the choice. The runner is named, because DirectRunner may be another
engine on another machine. The embedded runner works in memory. In its other modes, Beam opens four
ports on all interfaces, without credentials, and serves any file of the host there. Parallel work
runs in the threads of `pipeline.py` and in the processes of `workers/pool.py`.

Other runners start workers on other hosts. They have two requirements. The raw files, the storage
root and the attempt's folder are mounted at the same paths, because the workers write shards and
summaries into them. Trainyard and its packages are installed in the same versions.
"""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner

from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import ConfigError
from pipeline_ops.system.cores import count_cores

_BEAM_RUNNER_NAMES = {
    "portable": "PortableRunner",
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "dataflow": "DataflowRunner",
}


def create_engine(runner: BeamRunner) -> tuple[PipelineRunner, PipelineOptions]:
    """Returns the engine and its options.

    Raises:
      ConfigError: Beam lacks the runner's packages, or does not accept an option.
    """
    if runner.name == "embedded":
        return FnApiRunner(), PipelineOptions(
            [], direct_running_mode="in_memory", direct_num_workers=1
        )
    try:
        options = PipelineOptions.from_dictionary(
            {"runner": (name := _BEAM_RUNNER_NAMES[runner.name]), **runner.options}
        )
        options.get_all_options()
        return create_runner(name), options
    except SystemExit:  # Beam's argument parser exits after it has named the wrong option on stderr
        raise ConfigError(
            f"preprocess.runner.options: Beam does not accept {runner.options}. See the log."
        ) from None
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"preprocess.runner.name: Beam cannot start {runner.name}: {error}. "
            "Install the packages of the runner, or choose another one."
        ) from None


def compute_num_threads(runner: BeamRunner, num_shards: int) -> int:
    """The number of shards that a Beam worker builds at once.

    In the embedded runner, whose only worker is this process, each thread beyond the number of
    shards would be idle. With worker processes, each thread waits for one of them.
    """
    if runner.name != "embedded" or runner.mode == "in_memory":
        return 1
    return min(runner.workers or count_cores(), num_shards)
