"""A Slurm cluster for tests: the real daemons with nodes on this machine, and own ports and keys.

Needs root and Debian's slurm packages.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from launch.running import find_by_text, wait_until
from processes import allow_other_users

os.environ["PATH"] += f"{os.pathsep}/usr/sbin{os.pathsep}/sbin"  # not in every user's path

_END_SECONDS = 10
_TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "setpriv")


def why_not() -> str | None:
    """Returns the reason why no cluster can run here, or None."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    return (
        f"{', '.join(missing)} not found: install slurmctld, slurmd, slurm-client and munge"
        if missing
        else None
    )


class Cluster:
    """Nodes n1, n2, and so on.

    Args:
      folder: the folder for configuration, state and logs.
      count: the number of nodes.
    """

    def __init__(self, folder: Path, count: int):
        self.folder, self.count = folder, count
        self.config = folder / "slurm.conf"

    def up(self) -> None:
        allow_other_users(self.folder)  # munged runs as another user
        for name in ("ctld", "spool", "log", "run"):
            (self.folder / name).mkdir()
        self._start_munge()
        self.config.write_text(self._configuration())
        os.environ["SLURM_CONF"] = str(self.config)
        _run("slurmctld", "-f", str(self.config))
        for node in range(1, self.count + 1):
            (self.folder / "spool" / f"n{node}").mkdir()
            _run("slurmd", "-N", f"n{node}", "-f", str(self.config))
        self._wait(
            lambda: (
                len(self._ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) == self.count
            ),
            "the nodes do not come up",
        )

    def down(self) -> None:
        """Ends the jobs, which would outlive their daemons, then the daemons.

        The cluster may have started only in part.
        """
        try:
            if jobs := self.jobs():
                self._ask("scancel", *jobs)
                self._wait(lambda: not self.jobs(), "jobs are still there")
        finally:
            self._end_daemons()
            os.environ.pop("SLURM_CONF", None)

    def daemons(self) -> list[int]:
        """The living processes of this cluster.

        The name of its folder is in the command of each daemon and in the environment of its jobs.
        """
        return find_by_text(str(self.folder))

    def _end_daemons(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.daemons():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + _END_SECONDS
            while self.daemons() and time.monotonic() < deadline:
                time.sleep(0.1)
        assert self.daemons() == [], "daemons are still running"

    def jobs(self) -> list[str]:
        """The ids of the unfinished jobs."""
        return self._ask("squeue", "-h", "-o", "%i").split()

    def _start_munge(self) -> None:
        munge = self.folder / "munge"
        for folder, mode in ((munge, "0755"), (munge / "lib", "0700"), (munge / "log", "0700")):
            _run("install", "-d", "-o", "munge", "-g", "munge", "-m", mode, str(folder))
        (munge / "key").write_bytes(os.urandom(1024))
        shutil.chown(munge / "key", "munge", "munge")
        (munge / "key").chmod(0o600)
        _run(
            "setpriv",
            "--reuid",
            "munge",
            "--regid",
            "munge",
            "--init-groups",
            "munged",
            f"--key-file={munge}/key",
            f"--socket={munge}/sock",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log/munged.log",
            f"--seed-file={munge}/lib/seed",
            "--force",
        )

    def _configuration(self) -> str:
        here, (controller, *ports) = socket.gethostname().split(".")[0], _free_ports(self.count + 1)
        nodes = "".join(
            f"NodeName=n{n} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} "
            "CPUs=2 RealMemory=2000 State=UNKNOWN\n"
            for n, port in enumerate(ports, 1)
        )
        return f"""ClusterName=tests
SlurmctldHost={here}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/sock
CredType=cred/munge
StateSaveLocation={self.folder}/ctld
SlurmdSpoolDir={self.folder}/spool/%n
SlurmctldPidFile={self.folder}/run/slurmctld.pid
SlurmdPidFile={self.folder}/run/slurmd-%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=60
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2
{nodes}PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(
            is_so, explain=lambda: f"{what}: {self._ask('sinfo', '-N')}\n{self._ask('squeue')}"
        )

    def _ask(self, *argv: str) -> str:
        own = os.environ | {
            "SLURM_CONF": str(self.config)
        }  # the variable may name another cluster while this one starts
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=own).stdout


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr or done.stdout}"
