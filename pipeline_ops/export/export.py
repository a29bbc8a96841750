"""The export job: makes and checks every format, publishes a version and puts it in service.

Started as `python -m pipeline_ops.export.export --request <path>`, only for a challenger that has
passed the gate. The order of the steps makes a kill harmless. Outputs are staged next to the
artifact, a version appears whole or not at all, and the champion moves last. A retry finds the
results of the first try and goes on from there. A version that a person has rolled back is not put
in service again.
"""

from __future__ import annotations

from pipeline_ops.artifacts.results import EvaluationFigures, FormatFigures
from pipeline_ops.config.export import Export
from pipeline_ops.errors import ExitCode
from pipeline_ops.export.publication import write_report
from pipeline_ops.export.staged_version import stage_version
from pipeline_ops.export.trained_model import read_trained_model
from pipeline_ops.jobs.request import Request
from pipeline_ops.jobs.runner import Job, run_job
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import Version


def export(job: Job) -> ExitCode:
    """Publishes, promotes, and writes an artifact that names the version.

    Raises:
      DataError: the challenger may not be published, and nothing was published. Or another model
        was put in service during the export. Then the version exists, but is not in service.
    """
    request, progress = job.request, job.progress
    config, model = Export.model_validate(request.config), read_trained_model(request)
    registry = Registry(request.config["registry"])
    staged = stage_version(job, config, model)
    progress.report("publish", message="; ".join(_describe(each) for each in staged.formats))
    version = registry.publish(model.training.digest, staged.write, staged.contents_digest)
    version.fetch()  # compares what was published with its manifest
    outcome = _promote(registry, version, request, model.evaluation)
    progress.report("promote", message=outcome)
    if keep := config.keep_versions:
        retired = registry.retire(keep, f"export.keep_versions is {keep}")
        if retired:
            progress.report("retire", message=f"removed version {', '.join(map(str, retired))}")
    with job.artifact() as draft:
        figures = staged.build_figures(version.number)
        write_report(draft.folder, model.evaluation_folder, model.figures.task, figures, outcome)
        draft.figures = figures.model_dump(mode="json")
    return ExitCode.SUCCESS


def _describe(checked: FormatFigures) -> str:
    return (
        f"{checked.name}: {checked.num_checked} images checked, "
        f"largest difference {checked.max_difference:.2g}, {checked.num_bytes:,} bytes, "
        f"{1000 * checked.latency_seconds:.2g} ms an image"
    )


def _promote(
    registry: Registry, version: Version, request: Request, evaluation: EvaluationFigures
) -> str:
    """Puts the version in service. Returns the outcome as a text for people.

    A version stays out of service if it was in service before and has been replaced.
    """
    champion = registry.find_champion()
    if champion and champion.number == version.number:
        return f"version {version.number} is already in service"
    same_model_versions = {
        each.number for each in registry.find_by_training(request.inputs["train"].digest)
    }
    expected = evaluation.champion_version
    if champion and champion.number in same_model_versions:
        expected = champion.number
    elif champion and (earlier := registry.find_earlier_services(same_model_versions)):
        return (
            f"version {earlier[-1]} was in service before "
            f"and was replaced by version {champion.number}. "
            "A person may put it in service again, a run does not"
        )
    reason = (
        f"run {request.run_id} of {request.pipeline}: "
        f"{'; '.join(rule.text for rule in evaluation.rules)}"
    )
    registry.promote(version.number, reason, expected=expected)
    return f"version {version.number} is in service"


if __name__ == "__main__":
    run_job(export)
