"""The evaluate job: compares challenger and champion, as served, on the same test examples.

Started as `python -m pipeline_ops.evaluation.evaluate --request <path>`, a process that has never
seen the model in memory. It writes `report.html` and `predictions.png` for people and
`metrics.json` for programs. Its exit code is the verdict of the gate. A gate that is not passed
leaves the same complete artifact. The export job publishes the model, this job does not.

A champion gets the images as this data set has them. Its own SavedModel resizes them to the size of
its training. Any other difference of the preprocessing is the champion's disadvantage, and the
report shows it. A champion with different classes is not evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from pipeline_ops.artifacts.dataset import QUARANTINE, STATISTICS
from pipeline_ops.artifacts.results import METRICS, PREDICTIONS, REPORT, EvaluationFigures
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import ExitCode
from pipeline_ops.evaluation.bootstrap import SEED
from pipeline_ops.evaluation.classifier import build_classifier_metrics, evaluate_classifier
from pipeline_ops.evaluation.classifier_page import (
    draw_classifier_predictions,
    render_classifier_report,
)
from pipeline_ops.evaluation.detector import build_detector_metrics, evaluate_detector
from pipeline_ops.evaluation.detector_page import (
    draw_detector_predictions,
    render_detector_report,
)
from pipeline_ops.evaluation.gate import Evidence, judge
from pipeline_ops.evaluation.groups import Group
from pipeline_ops.evaluation.inputs import Inputs, read_inputs
from pipeline_ops.evaluation.leaks import find_leaks
from pipeline_ops.evaluation.lineage import trace_lineage
from pipeline_ops.evaluation.measures import find_largest_drift, read_drift
from pipeline_ops.evaluation.report import ReportData, read_rejected
from pipeline_ops.evaluation.report_charts import describe_overfitting
from pipeline_ops.jobs.runner import Job, run_job
from pipeline_ops.storage.local_files import write_atomically, write_json
from pipeline_ops.storage.open_store import open_root


def evaluate(job: Job) -> ExitCode:
    """Evaluates and writes the artifact, whatever the verdict.

    Raises:
      DataError: an input is damaged or does not belong to the others.
    """
    config, inputs = Evaluate.model_validate(job.request.config), read_inputs(job.request)
    dataset = inputs.dataset
    names = dataset.figures.class_names
    root = open_root(job.request.root)
    leaks = find_leaks(dataset, inputs.champion, config.allowed_leaks, root)
    drift = read_drift(dataset.folder / STATISTICS)
    if dataset.figures.task == "detection":
        detector = evaluate_detector(job, config, inputs)
        metrics = build_detector_metrics(detector)
        render = functools.partial(render_detector_report, detector)
        predictions = draw_detector_predictions(detector, names)
        whole, slices, seeds = detector.whole, [], {}
    else:
        classifier = evaluate_classifier(job, config, inputs)
        metrics = build_classifier_metrics(classifier, names)
        render = functools.partial(render_classifier_report, classifier)
        predictions = draw_classifier_predictions(classifier, names)
        whole, slices = classifier.whole, classifier.slices
        seeds = {"bootstrap": SEED}
    figures = _judge(config, inputs, whole, slices, find_largest_drift(drift))
    report = ReportData(
        pipeline=job.request.pipeline,
        figures=figures,
        training=inputs.challenger.figures,
        dataset=dataset.figures,
        rejected=read_rejected(dataset.folder / QUARANTINE),
        drift=drift,
        leaks=leaks,
        lineage=trace_lineage(job.request, inputs),
        no_champion_reason=inputs.no_champion_reason,
    )
    with job.artifact() as draft:
        draft.figures, draft.seeds = figures.model_dump(mode="json"), seeds
        write_json(
            draft.folder / METRICS,
            {
                **draft.figures,
                "class_names": names,
                "leaks": dataclasses.asdict(leaks),
                **metrics,
            },
        )
        write_atomically(draft.folder / REPORT, render(report).encode())
        write_atomically(draft.folder / PREDICTIONS, predictions)
    return ExitCode.SUCCESS if figures.gate_passed else ExitCode.GATE_NOT_PASSED


def _judge(
    config: Evaluate, inputs: Inputs, whole: Group, slices: Sequence[Group], drift: float | None
) -> EvaluationFigures:
    evidence = Evidence(whole, slices, drift, inputs.no_champion_reason or "")
    rules = judge(config.gate, evidence)
    return EvaluationFigures(
        num_examples=whole.num_examples,
        challenger=whole.challenger.model_copy(update={"intervals": whole.compute_intervals()}),
        champion=whole.champion,
        champion_version=inputs.champion.version if inputs.champion else None,
        gate_passed=all(rule.passed for rule in rules),
        rules=rules,
        differences=whole.compute_difference_intervals(),
        slices=[group.to_slice_figures() for group in slices],
        drift=drift,
        baseline=dict(whole.baseline),
        overfitting=describe_overfitting(inputs.challenger.figures, inputs.dataset.figures),
    )


if __name__ == "__main__":
    run_job(evaluate)
