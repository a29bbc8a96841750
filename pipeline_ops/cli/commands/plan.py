"""`trainyard plan CONFIG`: where each task runs, and the host and role of each training process.

It starts no process and reaches no host.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.cli.arguments import (
    Commands,
    add_command,
    add_config,
    add_overrides,
    load_checked,
    parse_overrides,
)
from pipeline_ops.config.hosts import (
    Hosts,
    KubernetesHosts,
    LocalHosts,
    SlurmHosts,
    SshHosts,
)
from pipeline_ops.config.pipeline import TASKS, PipelineConfig

if TYPE_CHECKING:
    from pipeline_ops.launch.plan import Host

_PLACEHOLDER_RUN_ID = "RUN"


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plan",
        plan,
        "Show where each task runs, and the host and the role of each training process.",
        "Also prints the request to Slurm or Kubernetes. Starts no process and contacts no\nhost.",
    )
    add_config(parser)
    add_overrides(parser)


def plan(arguments: argparse.Namespace) -> int:
    config = load_checked(arguments.config, parse_overrides(arguments.overrides))
    print(render_plan(config))
    return 0


def render_plan(config: PipelineConfig) -> str:
    """Renders the plan for the case that all hosts are available.

    It names each value that a host determines itself: its ports and its number of cores.
    """
    from pipeline_ops.launch.plan import build_launch_plan

    hosts = _allocate_hosts(config.hosts)
    attempt = Attempt(Layout(config.root, config.pipeline).attempts(_PLACEHOLDER_RUN_ID, "train"))
    plan = build_launch_plan(config.train, hosts, attempt, Path("WORK"))
    if plan.needs_ports:
        first = config.hosts.ports[0] if config.hosts and config.hosts.ports else 0
        plan = plan.with_ports(
            {host.name: itertools.count(first) if first else itertools.repeat(0) for host in hosts}
        )
    places = _render_places(config)
    return "\n\n".join([*places, str(plan), *_render_cluster_requests(attempt, config)])


def _render_places(config: PipelineConfig) -> list[str]:
    """The tasks that run elsewhere. Without `train.hosts`, the gang is where its task is."""
    lines = [
        f"{task:<12}{hosts.launcher:<12}hosts/{getattr(config, task).runs_on}.yaml"
        for task in TASKS
        if (hosts := config.find_job_hosts(task))
    ]
    return ["\n".join(["task        runs on", *lines])] if lines else []


def _allocate_hosts(hosts: Hosts | None) -> list[Host]:
    from pipeline_ops.launch.launchers import LocalLauncher, SshLauncher
    from pipeline_ops.launch.plan import Host

    launcher: SshLauncher | LocalLauncher
    match hosts:
        case SlurmHosts(nodes=nodes, workers_per_node=workers, cores_per_node=cores):
            names = [f"node-{number}" for number in range(1, nodes + 1)]
            return [
                Host(name=name, address=name, workers=workers, cores=cores or 0) for name in names
            ]
        case KubernetesHosts(pods=pods, workers_per_pod=workers):
            names = [f"pod-{number}" for number in range(pods)]
            return [Host(name=name, address=name, workers=workers) for name in names]
        case SshHosts():
            launcher = SshLauncher(hosts)
        case LocalHosts(workers=workers, cores=cores):
            launcher = LocalLauncher(workers, cores or 0)
        case _:
            launcher = LocalLauncher()
    return launcher.allocate(lambda: None)


def _render_cluster_requests(attempt: Attempt, config: PipelineConfig) -> list[str]:
    """The requests to a cluster."""
    from pipeline_ops.jobs.places.slurm import build_sbatch_command
    from pipeline_ops.launch.launchers import build_batch_script, build_manifests, count_nodes

    name, folder, hosts = f"trainyard-{config.pipeline}", attempt.folder, config.hosts
    match hosts:
        case SlurmHosts():
            command = " ".join(
                build_sbatch_command(hosts, name, folder / "slurm.log", count_nodes(hosts))
            )
            return [command, build_batch_script(hosts, folder).strip()]
        case KubernetesHosts():
            name, timeout_seconds = name.replace("_", "-"), config.train.timeout_seconds
            items = build_manifests(hosts, name, str(folder), timeout_seconds)
            manifest = {"apiVersion": "v1", "kind": "List", "items": items}
            return [json.dumps(manifest, indent=2)]
        case _:
            return []
