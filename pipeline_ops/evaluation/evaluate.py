"""The evaluate job: compares challenger and champion, as served, on the same test examples.

Started as `python -m pipeline_ops.evaluation.evaluate --request <path>`, a process that has never
seen the model in memory. Writes `report.html` for people and `metrics.json` for programs. Its exit
code says whether the gate was passed. It publishes nothing: that is the export job's part. A gate
that is not passed leaves the same complete artifact.

A champion gets the images as this data set has them. Its own SavedModel resizes them to the size of
its training. Any other difference of the preprocessing is the champion's disadvantage, and the
report says so. A champion with different classes is not evaluated.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.artifacts.results import METRICS, REPORT, EvaluationFigures, ModelEvaluation
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import ExitCode
from pipeline_ops.evaluation.detector import evaluate_detector
from pipeline_ops.evaluation.gate import NO_CHAMPION, Evidence, judge
from pipeline_ops.evaluation.groups import Group, slice_groups, whole_group
from pipeline_ops.evaluation.inputs import Inputs, read_inputs
from pipeline_ops.evaluation.leaks import Leaks, find_leaks
from pipeline_ops.evaluation.lineage import trace
from pipeline_ops.evaluation.measures import largest_drift, latencies_milliseconds, read_drift
from pipeline_ops.evaluation.metrics import Comparison, Curves, compare, evaluate_model
from pipeline_ops.evaluation.predictions import Predictions, Shown, ask
from pipeline_ops.evaluation.report import ReportData, read_rejected, render
from pipeline_ops.evaluation.slices import wanted_features
from pipeline_ops.input.saved_model_client import ServedModel, read_encoded
from pipeline_ops.jobs.runner import Job, run_job
from pipeline_ops.storage.atomic import write_json, write_whole


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings from the answers, before the verdict.

    `curves` are those of the challenger and, if there is one, of the champion.
    """

    whole: Group
    slices: list[Group]
    curves: list[Curves]
    comparison: Comparison | None


def evaluate(job: Job) -> ExitCode:
    """Evaluates and writes the artifact, whatever the verdict.

    Raises:
      DataError: an input is not what it should be.
    """
    config, inputs = Evaluate.model_validate(job.request.config), read_inputs(job.request)
    why_alone = _why_alone(inputs)
    if inputs.dataset.figures.task == "detection":
        return evaluate_detector(job, config, inputs, why_alone)
    leaks = find_leaks(inputs.dataset, inputs.champion, config.allowed_leaks)
    models = _load(inputs, with_champion=why_alone is None)
    answers = _ask(job, config, inputs, models)
    findings = _find(config, inputs, answers, _measure(config, inputs, models))
    drift = read_drift(inputs.dataset.statistics)
    figures = _judge(config, inputs, findings, largest_drift(drift), why_alone)
    with job.artifact() as draft:
        write_json(draft.folder / METRICS, _metrics(inputs, figures, findings, answers, leaks))
        write_whole(
            draft.folder / REPORT,
            render(
                ReportData(
                    pipeline=job.request.pipeline,
                    figures=figures,
                    comparison=findings.comparison,
                    why_alone=why_alone,
                    curves=findings.curves,
                    mistakes=answers.worst_mistakes,
                    surprises=answers.surprises,
                    training=inputs.challenger.figures,
                    dataset=inputs.dataset.figures,
                    rejected=read_rejected(inputs.dataset.quarantine),
                    drift=drift,
                    leaks=leaks,
                    lineage=trace(job.request, inputs),
                    top_k=config.top_k,
                    bootstrap_samples=config.bootstrap.samples,
                )
            ).encode(),
        )
        draft.figures = figures.model_dump(mode="json")
        draft.seeds = {"bootstrap": config.bootstrap.seed}
    return ExitCode.SUCCESS if figures.gate_passed else ExitCode.GATE_NOT_PASSED


def _why_alone(inputs: Inputs) -> str | None:
    """Returns the reason for an evaluation without a champion, as the end of a sentence.

    Returns None if there is a champion to compare with.
    """
    if inputs.champion is None:
        return NO_CHAMPION
    ours, theirs = inputs.dataset.figures.class_names, inputs.champion.figures.class_names
    return (
        None
        if ours == theirs
        else f"the champion (version {inputs.champion.version}) {_difference(theirs, ours)}"
    )


def _difference(theirs: list[str], ours: list[str]) -> str:
    """Describes the difference that keeps a model with their classes from running on ours."""
    unknown, gone = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    parts = [f"does not know {', '.join(unknown)}"] if unknown else []
    parts += [f"knows {', '.join(gone)}, which the data set lacks"] if gone else []
    return " and ".join(parts) or "has the classes in another order"


def _load(inputs: Inputs, with_champion: bool) -> list[ServedModel]:
    num_classes = len(inputs.dataset.figures.class_names)
    models = [ServedModel(inputs.challenger.saved_model, "the challenger", num_classes)]
    if with_champion:
        models.append(
            ServedModel(
                inputs.champion.saved_model,
                f"the champion (version {inputs.champion.version})",
                num_classes,
            )
        )
    return models


def _ask(job: Job, config: Evaluate, inputs: Inputs, models: list[ServedModel]) -> Predictions:
    dataset, progress = inputs.dataset, job.progress
    total = dataset.num_test_examples
    progress.report("evaluate", 0, total, "images")
    examples = read_encoded(
        dataset.test_shards,
        config.batch,
        dataset.removed_from_test_shards,
        wanted_features(config.slices),
    )
    job.attempt.folder.mkdir(parents=True, exist_ok=True)
    return ask(
        models,
        examples,
        total,
        len(dataset.figures.class_names),
        config.slices,
        config.worst_mistakes,
        job.attempt.folder,
        lambda done: progress.report("evaluate", done, total, "images"),
    )


def _measure(config: Evaluate, inputs: Inputs, models: list[ServedModel]) -> list[dict[str, float]]:
    """Measures each model as it is served."""
    sizes = [
        inputs.challenger.model_bytes,
        *([inputs.champion.model_bytes] if len(models) > 1 else []),
    ]
    found = [{"model_bytes": float(size)} for size in sizes]
    if config.measures_latency:
        first = next(
            iter(
                read_encoded(
                    inputs.dataset.test_shards,
                    config.batch,
                    inputs.dataset.removed_from_test_shards,
                )
            )
        )
        for measures, latency in zip(
            found, latencies_milliseconds(models, first.images), strict=True
        ):
            measures["latency_milliseconds"] = latency
    return found


def _find(
    config: Evaluate, inputs: Inputs, answers: Predictions, measures: list[dict[str, float]]
) -> Findings:
    names, labels = inputs.dataset.figures.class_names, answers.labels
    evaluated = [
        evaluate_model(labels, answer, names, config.top_k, config.calibration_bins)
        for answer in answers.models
    ]
    evaluations = [
        evaluation.model_copy(update={"measures": found})
        for (evaluation, _), found in zip(evaluated, measures, strict=True)
    ]
    return Findings(
        whole=whole_group(labels, answers.models, evaluations, config.top_k, config.bootstrap),
        slices=slice_groups(
            labels, answers.models, answers.slices, names, config.top_k, config.bootstrap
        ),
        curves=[curves for _, curves in evaluated],
        comparison=compare(labels, *(answer.classes for answer in answers.models))
        if len(answers.models) > 1
        else None,
    )


def _judge(
    config: Evaluate, inputs: Inputs, findings: Findings, drift: float | None, why_alone: str | None
) -> EvaluationFigures:
    whole = findings.whole
    rules = judge(config.gate, Evidence(whole, findings.slices, drift, why_alone or NO_CHAMPION))
    return EvaluationFigures(
        num_examples=whole.num_examples,
        challenger=_with_intervals(whole.challenger, whole),
        champion=whole.champion,
        champion_version=inputs.champion.version if inputs.champion else None,
        gate_passed=all(rule.passed for rule in rules),
        rules=rules,
        differences=whole.differences(),
        slices=[group.as_slice() for group in findings.slices],
        drift=drift,
    )


def _with_intervals(model: ModelEvaluation, group: Group) -> ModelEvaluation:
    return model.model_copy(update={"intervals": group.intervals()})


def _metrics(
    inputs: Inputs,
    figures: EvaluationFigures,
    findings: Findings,
    answers: Predictions,
    leaks: Leaks,
) -> dict[str, Any]:
    """Returns the content of `metrics.json`: all figures, their uncertainty, the worst mistakes."""
    names = inputs.dataset.figures.class_names
    return {
        **figures.model_dump(mode="json"),
        "class_names": names,
        "comparison": findings.comparison and dataclasses.asdict(findings.comparison),
        "leaks": dataclasses.asdict(leaks),
        "precision_at_recall": [
            {
                names[index]: [round(float(value), 4) for value in values]
                for index, values in curves.by_class.items()
            }
            for curves in findings.curves
        ],
        "worst_mistakes": [_example(shown, names) for shown in answers.worst_mistakes],
        "surprises": [_example(shown, names) for shown in answers.surprises],
    }


def _example(shown: Shown, names: list[str]) -> dict[str, Any]:
    champion = (
        {}
        if shown.champion_answer is None
        else {
            "champion_answer": names[shown.champion_answer],
            "champion_label_probability": shown.champion_label_probability,
        }
    )
    return {
        "key": shown.key,
        "label": names[shown.label],
        "answer": names[shown.answer],
        "confidence": shown.confidence,
        "label_probability": shown.label_probability,
        **champion,
    }


if __name__ == "__main__":
    run_job(evaluate)
