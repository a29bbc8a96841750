"""The DAG `trainyard_models`: rolls a model back, or promotes a version, without a terminal.

Its form asks for the pipeline and the action. By default, it rolls back the first pipeline's model.
It does the same as `trainyard models`, and stores the reason, or else the id of the run, with the
move.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.registry.registry import Registry

DAG_ID = "trainyard_models"
ROLL_BACK, PROMOTE = "roll back", "promote"
_FIELDS = ("pipeline", "action", "version", "reason")
_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def make_models_dag(configs: Sequence[PipelineConfig], dag_id: str = DAG_ID) -> DAG:
    """Makes the DAG for the models of all pipelines, of which there must be at least one."""
    names = sorted(config.pipeline for config in configs)
    params = {
        "pipeline": Param(
            names[0],
            type="string",
            enum=names,
            title="Pipeline",
            description="whose model is meant",
        ),
        "action": Param(
            ROLL_BACK,
            type="string",
            enum=[ROLL_BACK, PROMOTE],
            title="Action",
            description=(
                "roll back puts the champion before the present one back in service; "
                "promote puts any version there"
            ),
        ),
        "version": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Version",
            description="for promote: the number of the version",
        ),
        "reason": Param(
            None, type=["null", "string"], title="Reason", description="is kept with the move"
        ),  # empty and required can't be sent
    }
    with DAG(
        dag_id,
        description="Rolls a model back to the champion before, or promotes a version.",
        schedule=None,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        tags=["trainyard"],
        params=params,
        doc_md=__doc__,
    ) as dag:
        MoveChampionOperator(
            task_id="move_champion",
            config_files={config.pipeline: str(config.file) for config in configs},
        )
    return dag


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

    def execute(self, context: Mapping[str, Any]) -> int:
        params = context["params"]
        if unknown := sorted(
            set(params) - set(_FIELDS)
        ):  # Airflow accepts any key by REST, and a misspelt action would roll back
            raise AirflowFailException(f"{unknown[0]}: unknown key; {nearest(unknown[0], _FIELDS)}")
        try:
            registry = Registry(load_config(Path(self.config_files[params["pipeline"]])).registry)
            number = _move(registry, params["action"], params["version"], _reason(context))
        except TrainyardError as error:
            raise (AirflowException if error.exit_code.is_retried else AirflowFailException)(
                str(error)
            ) from None
        self.log.info("version %d is in service: %s", number, registry.store.uri(number))
        return number


def _move(registry: Registry, action: str, version: int | None, reason: str) -> int:
    if action == ROLL_BACK:
        return registry.roll_back(reason).number
    if version is None:
        raise ConfigError(
            f"{PROMOTE}: give the number of the version; there are "
            f"{', '.join(str(v.number) for v in registry.versions()) or 'none'}"
        )
    registry.promote(version, reason)
    return version


def _reason(context: Mapping[str, Any]) -> str:
    return context["params"]["reason"] or f"by hand, in Airflow, run {context['run_id']}"
