"""The evaluate job: compares challenger and champion, as served, on the same test examples.

Started as `python -m pipeline_ops.evaluation.evaluate --request <path>`, a process that has never
seen the model in memory. It writes `report.html` and `predictions.png` for people, `metrics.json`
for programs, and the answers themselves for pages of Airflow (`answers.py`). Its exit code is the
verdict of the gate. A gate that is not passed leaves the same complete artifact. The export job
publishes the model, this job does not.

A champion gets the images as this data set has them. Its own SavedModel resizes them to the size of
its training. Any other difference of the preprocessing is the champion's disadvantage, and the
report shows it. A champion with different classes is not evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.contract.dataset import QUARANTINE, STATISTICS
from pipeline_ops.contract.remarks import describe_small_splits
from pipeline_ops.contract.results import (
    METRICS,
    PREDICTIONS,
    REPORT,
    SEEN_PICTURES,
    EvaluationFigures,
    ServingFigures,
)
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.evaluation.answers import count_by_threshold, write_answers
from pipeline_ops.evaluation.as_served import to_verdict
from pipeline_ops.evaluation.classifier import ClassifierFindings, evaluate_classifier
from pipeline_ops.evaluation.detector import DetectorFindings, evaluate_detector
from pipeline_ops.evaluation.gate import judge, judge_answers
from pipeline_ops.evaluation.inputs import Inputs, find_leaks, read_inputs, trace_lineage
from pipeline_ops.evaluation.report import (
    ReportData,
    compare_with_training,
    describe_overfitting,
    draw_predictions,
    read_rejected,
    render_report,
)
from pipeline_ops.evaluation.skew import compare_with_requests
from pipeline_ops.job.runner import Job, run_job
from pipeline_ops.storage.local_files import read_json, write_atomically, write_json
from pipeline_ops.storage.open_store import open_root


def evaluate(job: Job) -> ExitCode:
    """Evaluates the models, and writes the artifact whatever the verdict."""
    config, inputs = Evaluate.model_validate(job.request.config), read_inputs(job.request)
    dataset, names = inputs.dataset, inputs.class_names
    leaks = find_leaks(inputs, config.allowed_leaks, open_root(job.request.root))
    drift = _read_drift(dataset.folder / STATISTICS)
    serving = compare_with_requests(config, job.request.serving, dataset.folder / STATISTICS)
    found: ClassifierFindings | DetectorFindings
    if dataset.figures.task == "detection":
        found = evaluate_detector(job, config, inputs)
    else:
        found = evaluate_classifier(job, config, inputs)
    figures = _judge(config, inputs, found, drift, serving.figures if serving else None)
    counts = count_by_threshold(found, names, figures.champion_version)
    report = ReportData(
        pipeline=job.request.pipeline,
        figures=figures,
        training=inputs.challenger.figures,
        dataset=dataset.figures,
        rejected=read_rejected(dataset.folder / QUARANTINE),
        drift=drift,
        serving=serving,
        leaks=leaks,
        lineage=trace_lineage(job.request, inputs),
        no_champion_reason=inputs.no_champion_reason,
        counts=counts,
        seen=_read_seen(inputs),
    )
    with job.artifact() as draft:
        draft.figures, draft.seeds = figures.model_dump(mode="json"), found.seeds
        contents = {
            **draft.figures,
            "class_names": names,
            "leaks": leaks._asdict(),
            # Of each model by class, at `RECALL_THRESHOLDS`.
            "precision_at_recall": [
                {name: curve.round(4).tolist() for name, curve in curves.items()}
                for curves in found.curves
            ],
            **found.build_metrics(),
        }
        if serving:
            contents["requests"] = serving.requests.model_dump(mode="json")
        write_json(draft.folder / METRICS, contents)
        write_atomically(draft.folder / REPORT, render_report(found, report).encode())
        write_atomically(draft.folder / PREDICTIONS, draw_predictions(found, names))
        write_answers(draft.folder, found, counts)
    return ExitCode.SUCCESS if figures.gate_passed else ExitCode.GATE_NOT_PASSED


def _read_seen(inputs: Inputs) -> bytes:
    """Reads the pictures as the model saw them. Returns b"" if the training has none."""
    listed = any(file.path == SEEN_PICTURES for file in inputs.challenger.manifest.files)
    return (inputs.challenger.folder / SEEN_PICTURES).read_bytes() if listed else b""


def _read_drift(statistics_file: Path) -> list[dict[str, Any]] | None:
    """Reads the drift of each feature and of the classes from the reference, the largest first.

    Returns None if there was no reference.
    """
    try:
        found = read_json(statistics_file)
        comparison = found["comparison"] if found else None
        return None if comparison is None else list(comparison["drift"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"cannot read {statistics_file} ({error}). Remove the data set that it belongs to, "
            "then start a new run."
        ) from None


def _judge(
    config: Evaluate,
    inputs: Inputs,
    found: ClassifierFindings | DetectorFindings,
    drift: list[dict[str, Any]] | None,
    serving: ServingFigures | None,
) -> EvaluationFigures:
    whole, slices, largest_drift = found.whole, found.slices, None
    if drift is not None:
        largest_drift = max((distance["jensen_shannon"] for distance in drift), default=0.0)
    rules = judge(config.gate, whole, slices, largest_drift, inputs.no_champion_reason, serving)
    rules += [*judge_answers(whole), *to_verdict(found.as_served)]
    return EvaluationFigures(
        num_examples=whole.num_examples,
        challenger=whole.challenger,
        champion=whole.champion,
        champion_version=inputs.champion.figures.version if inputs.champion else None,
        gate_passed=all(rule.passed for rule in rules),
        rules=rules,
        differences=whole.compute_difference_intervals(),
        slices=[group.to_slice_figures() for group in slices],
        drift=largest_drift,
        serving=serving,
        baseline=dict(whole.baseline),
        own_modes=config.own_modes,
        as_served=found.as_served,
        overfitting=describe_overfitting(inputs.challenger.figures, inputs.dataset.figures),
        warnings=[
            *compare_with_training(
                inputs.challenger.figures, inputs.dataset.figures, whole.challenger.metrics
            ),
            *describe_small_splits({"test": inputs.num_test_examples}),
        ],
    )


if __name__ == "__main__":
    run_job(evaluate)
