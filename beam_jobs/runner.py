"""The engine that runs the Beam graph: the embedded one on this host, or another Beam runner.

The graph does not depend on the choice. The runner is named, because DirectRunner may be another
engine on another machine. The embedded runner works in memory: in its other modes, Beam opens four
ports on all interfaces, without credentials, and serves any file of the host there.

Other runners start workers on other hosts. They have two requirements. The raw files and the
storage root are mounted at the same paths. Trainyard and its packages are installed in the same
versions.
"""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner

from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import ConfigError

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
