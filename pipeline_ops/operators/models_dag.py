"""The DAG `trainyard_models`: rolls a model back, or promotes a version, without a terminal.

Its form asks for the pipeline and the action. By default, it rolls back the first pipeline's model.
It does the same as `trainyard models`, and records the reason, or else the id of the run, in the
model's history.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.operators.task_run import make_airflow_error
from pipeline_ops.registry.registry import Registry

if TYPE_CHECKING:
    from airflow.sdk import Context

DAG_ID = "trainyard_models"
ROLL_BACK, PROMOTE = "roll back", "promote"
_FIELDS = ("pipeline", "action", "version", "reason")
_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def make_models_dag(configs: Sequence[PipelineConfig], dag_id: str = DAG_ID) -> DAG:
    """Makes the DAG for the models of all pipelines, of which there must be at least one."""
    with DAG(
        dag_id,
        description="Rolls a model back to its previous champion, or promotes a version.",
        schedule=None,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        tags=["trainyard"],
        params=_make_params(sorted(config.pipeline for config in configs)),
        doc_md=__doc__,
    ) as dag:
        MoveChampionOperator(
            task_id="move_champion",
            config_files={config.pipeline: str(config.file) for config in configs},
        )
    return dag


def _make_params(names: Sequence[str]) -> dict[str, Param]:
    return {
        "pipeline": Param(
            names[0],
            type="string",
            enum=names,
            title="Pipeline",
            description="The pipeline of the model.",
        ),
        "action": Param(
            ROLL_BACK,
            type="string",
            enum=[ROLL_BACK, PROMOTE],
            title="Action",
            description=(
                "roll back puts the previous champion back in service. "
                "promote puts any version in service."
            ),
        ),
        "version": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Version",
            description="The number of the version to promote.",
        ),
        "reason": Param(  # may be null, because Airflow's form cannot send an empty required field
            None,
            type=["null", "string"],
            title="Reason",
            description="The reason to record in the model's history.",
        ),
    }


class MoveChampionOperator(BaseOperator):
    """Rolls back or promotes. Pushes the number of the version that is in service afterwards.

    Args:
      config_files: the YAML of each pipeline.
    """

    ui_color = "#3f8f5f"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_files: Mapping[str, str], **kwargs: Any):
        super().__init__(**kwargs)
        self.config_files = dict(config_files)

    def execute(self, context: Context) -> int:
        params = context["params"]
        if unknown := sorted(set(params) - set(_FIELDS)):
            # Airflow's REST API accepts any key, and a misspelt action would roll back.
            raise AirflowFailException(
                f"{unknown[0]}: unknown key; {suggest_name(unknown[0], _FIELDS)}"
            )
        try:
            registry = Registry(load_config(Path(self.config_files[params["pipeline"]])).registry)
            number = _apply_move(
                registry, params["action"], params["version"], _read_reason(context)
            )
        except TrainyardError as error:
            raise make_airflow_error(error.exit_code, str(error)) from None
        self.log.info("version %d is in service: %s", number, registry.store.get_uri(number))
        return number


def _apply_move(registry: Registry, action: str, version: int | None, reason: str) -> int:
    if action == ROLL_BACK:
        return registry.roll_back(reason).number
    if version is None:
        raise ConfigError(
            f"{PROMOTE} needs the number of a version, and version is empty. Published versions: "
            f"{', '.join(str(v.number) for v in registry.list_versions()) or 'none'}."
        )
    registry.promote(version, reason)
    return version


def _read_reason(context: Context) -> str:
    return context["params"]["reason"] or f"by hand, in Airflow, run {context['run_id']}"
