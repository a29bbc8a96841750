"""The plan of a shard as a JSON file.

A driver writes the plans for its workers, which may run on other hosts. Unlike a pickle, such a
file cannot run code.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from beam_jobs.planning.plan import ShardPlan
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.atomic import translate_write_errors
from pipeline_ops.storage.parsing import describe_validation_error

_ADAPTER = TypeAdapter(ShardPlan)


def write_plan(path: Path, plan: ShardPlan) -> None:
    content = _ADAPTER.dump_json(plan, exclude_defaults=True)
    with translate_write_errors(path):
        path.write_bytes(content)


def read_plan(path: Path) -> ShardPlan:
    """Reads a plan. Raises MachineError if the file is missing or damaged."""
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}. Retry.") from error
    except ValidationError as error:
        fault = describe_validation_error(error)
        raise MachineError(f"{path} is not a plan: {fault}. Retry.") from None
