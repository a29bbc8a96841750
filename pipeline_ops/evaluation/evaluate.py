"""The evaluate job: the challenger against the champion on the same test examples, through the models as they are served.

Started as `python -m pipeline_ops.evaluation.evaluate --request <path>`. Leaves `report.html` for a person and
`metrics.json` for a program, and says with its exit code whether the gate was passed. It publishes nothing: that is the
export job's part. A gate that is not passed leaves the same whole artifact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.contracts.config_evaluate import Evaluate
from pipeline_ops.contracts.errors import DataError, ExitCode
from pipeline_ops.contracts.figures import METRICS, REPORT, EvaluationFigures
from pipeline_ops.contracts.files import write_json, write_whole
from pipeline_ops.contracts.job import Job, run_job
from pipeline_ops.contracts.progress import ProgressWriter
from pipeline_ops.evaluation.answers import Answers, Mistake, ask
from pipeline_ops.evaluation.gate import NO_CHAMPION, judge
from pipeline_ops.evaluation.inputs import Inputs, read_inputs
from pipeline_ops.evaluation.lineage import trace
from pipeline_ops.evaluation.metrics import Comparison, compare, evaluate_answers, wilson_interval_95
from pipeline_ops.evaluation.report import ReportData, read_rejected, render
from pipeline_ops.input.served import ServedModel, read_encoded


def evaluate(job: Job) -> ExitCode:
    """Evaluates and leaves the artifact, whatever the verdict. Raises DataError for inputs that are not what they should be."""
    config, inputs = Evaluate.model_validate(job.request.config), read_inputs(job.request)
    why_alone = _why_alone(inputs)
    answers = _ask(config, inputs, with_champion=why_alone is None, progress=job.progress)
    figures = _judge(config, inputs, answers, why_alone)
    comparison = compare(answers.labels, *answers.classes) if why_alone is None else None
    with job.artifact() as draft:
        write_json(draft.folder / METRICS, _metrics(inputs, figures, comparison, answers.worst_mistakes))
        write_whole(draft.folder / REPORT, render(ReportData(
            pipeline=job.request.pipeline, figures=figures, comparison=comparison, why_alone=why_alone, mistakes=answers.worst_mistakes,
            training=inputs.challenger.figures, dataset=inputs.dataset.figures, rejected=read_rejected(inputs.dataset.quarantine),
            lineage=trace(job.request, inputs))).encode())
        draft.figures = figures.model_dump(mode="json")
    return ExitCode.SUCCESS if figures.gate_passed else ExitCode.GATE_NOT_PASSED


def _why_alone(inputs: Inputs) -> str | None:
    """Why there is no champion to be compared with, as the end of a sentence; None where there is one."""
    if inputs.champion is None:
        return NO_CHAMPION
    ours, theirs = inputs.dataset.figures.class_names, inputs.champion.figures.class_names
    return None if ours == theirs else f"the champion (version {inputs.champion.version}) {_difference(theirs, ours)}"


def _difference(theirs: list[str], ours: list[str]) -> str:
    """What keeps a model with their classes from being tried on ours."""
    unknown, gone = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    parts = [f"does not know {', '.join(unknown)}"] if unknown else []
    parts += [f"knows {', '.join(gone)}, which the data set lacks"] if gone else []
    return " and ".join(parts) or "has the classes in another order"


def _ask(config: Evaluate, inputs: Inputs, with_champion: bool, progress: ProgressWriter) -> Answers:
    total, class_names = inputs.dataset.num_test_examples, inputs.dataset.figures.class_names
    progress.report("evaluate", 0, total, "images")
    models = [ServedModel(inputs.challenger.saved_model, "the challenger", len(class_names))]
    if with_champion:
        models.append(ServedModel(inputs.champion.saved_model, f"the champion (version {inputs.champion.version})", len(class_names)))
    examples = read_encoded(inputs.dataset.test_shards, config.batch, inputs.dataset.removed_from_test_shards)
    answers = ask(models, examples, len(class_names), config.worst_mistakes,
                  lambda done: progress.report("evaluate", done, total, "images"))
    if len(answers.labels) != total:
        raise DataError(f"{inputs.dataset.uri}: the test shards hold {len(answers.labels)} examples, the manifest says {total}")
    return answers


def _judge(config: Evaluate, inputs: Inputs, answers: Answers, why_alone: str | None) -> EvaluationFigures:
    challenger, *champion = (evaluate_answers(answers.labels, classes, inputs.dataset.figures.class_names) for classes in answers.classes)
    rules = judge(config.gate, challenger.metrics, champion[0].metrics if champion else None, why_alone or NO_CHAMPION)
    return EvaluationFigures(
        num_examples=len(answers.labels), challenger=challenger, champion=champion[0] if champion else None,
        champion_version=inputs.champion.version if inputs.champion else None, gate_passed=all(rule.passed for rule in rules), rules=rules)


def _metrics(inputs: Inputs, figures: EvaluationFigures, comparison: Comparison | None, mistakes: list[Mistake]) -> dict[str, Any]:
    """What a program may want to know: all figures, the uncertainty of them, and where to look for the mistakes."""
    names = inputs.dataset.figures.class_names
    correct = sum(row[index] for index, row in enumerate(figures.challenger.confusion))
    return {
        **figures.model_dump(mode="json"),
        "class_names": names,
        "accuracy_interval_95": wilson_interval_95(correct, figures.num_examples),
        "comparison": comparison and dataclasses.asdict(comparison),
        "worst_mistakes": [{"key": m.key, "label": names[m.label], "answer": names[m.answer], "confidence": m.confidence,
                            "label_probability": m.label_probability} for m in mistakes],
    }


if __name__ == "__main__":
    run_job(evaluate)
