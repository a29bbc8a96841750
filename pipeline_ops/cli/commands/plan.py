"""`trainyard plan CONFIG`: the host and the role of each process of a training.

It starts no process and reaches no host.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.cli.arguments import add_config, add_overrides, load_checked, parse_overrides
from pipeline_ops.config.hosts import Hosts, KubernetesHosts, LocalHosts, SlurmHosts, SshHosts
from pipeline_ops.config.pipeline import PipelineConfig

_NO_RUN = "RUN"


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "plan",
        help="say which process of a training would run where",
        description=(
            "Prints the launch plan of a training, and what Slurm or Kubernetes would be asked for."
        ),
    )
    add_config(parser)
    add_overrides(parser)
    parser.set_defaults(command=plan)


def plan(arguments: argparse.Namespace) -> int:
    config = load_checked(arguments.config, parse_overrides(arguments.overrides))
    print(describe(config))
    return 0


def describe(config: PipelineConfig) -> str:
    """The plan for the case that all hosts are there.

    It names each value that a host determines itself: its ports and its number of cores.
    """
    from pipeline_ops.launch.plan import build_launch_plan, gang_size, needs_ports, seats_of

    places = _places(config.hosts)
    attempt = Attempt(Layout(config.root, config.pipeline).attempts(_NO_RUN, "train"))
    seats = seats_of(config.train, places, gang_size(config.train, places))
    first = config.hosts.ports[0] if config.hosts and config.hosts.ports else 0
    listens = needs_ports(config.train, places, seats)
    ports = {
        place.name: range(first, first + len(seats)) if first else [0] * len(seats)
        for place in places
        if listens
    }
    text = str(
        build_launch_plan(config.train, places, seats, ports, attempt, Path("WORK"), incarnation=0)
    )
    return "\n\n".join([text, *_requests(config.hosts, attempt, config)])


def _places(hosts: Hosts | None) -> list:
    from pipeline_ops.launch.local import LocalLauncher
    from pipeline_ops.launch.plan import Host
    from pipeline_ops.launch.ssh import SshLauncher

    match hosts:
        case SshHosts():
            return SshLauncher(hosts).allocate(lambda: None)
        case SlurmHosts():
            return [
                Host(
                    name=f"node-{n}",
                    address=f"node-{n}",
                    workers=hosts.workers_per_node,
                    cores=hosts.cores_per_node or 0,
                )
                for n in range(1, hosts.nodes + 1)
            ]
        case KubernetesHosts():
            return [
                Host(name=f"pod-{n}", address=f"pod-{n}", workers=hosts.workers_per_pod)
                for n in range(hosts.pods)
            ]
        case LocalHosts():
            return LocalLauncher(hosts.workers, hosts.cores or 0).allocate(lambda: None)
        case _:
            return LocalLauncher().allocate(lambda: None)


def _requests(hosts: Hosts | None, attempt: Attempt, config: PipelineConfig) -> list[str]:
    """The requests to a cluster."""
    from pipeline_ops.launch.kubernetes import manifest
    from pipeline_ops.launch.slurm import batch_script, sbatch_command

    name = f"trainyard-{config.pipeline}"
    match hosts:
        case SlurmHosts():
            return [
                " ".join(sbatch_command(hosts, name, attempt.folder)),
                batch_script(hosts, attempt.folder).strip(),
            ]
        case KubernetesHosts():
            return [
                json.dumps(
                    manifest(
                        hosts,
                        name.replace("_", "-"),
                        str(attempt.folder),
                        config.train.timeout_seconds,
                    ),
                    indent=2,
                )
            ]
        case _:
            return []
