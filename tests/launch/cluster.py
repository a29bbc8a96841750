"""A Slurm cluster for tests: the real daemons, two nodes on this machine, ports and keys of its own. Needs root and Debian's slurm packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

os.environ["PATH"] += f"{os.pathsep}/usr/sbin{os.pathsep}/sbin"  # not in everybody's

_TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "setpriv")


def why_not() -> str | None:
    """Why there can be no cluster here; None where there can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    return f"{', '.join(missing)} not found: install slurmctld, slurmd, slurm-client and munge" if missing else None


class Cluster:
    """Nodes n1, n2, and so on.

    Args:
      folder: for configuration, state and logs.
      count: how many nodes.
    """

    def __init__(self, folder: Path, count: int):
        self.folder, self.count = folder, count
        self.config = folder / "slurm.conf"

    def up(self) -> None:
        for part in (self.folder, *self.folder.parents):  # munged runs as a user of its own
            if part.stat().st_uid == os.geteuid():
                part.chmod(part.stat().st_mode | 0o011)
        for name in ("ctld", "spool", "log", "run"):
            (self.folder / name).mkdir()
        self._start_munge()
        self.config.write_text(self._configuration())
        os.environ["SLURM_CONF"] = str(self.config)
        _run("slurmctld", "-f", str(self.config))
        for node in range(1, self.count + 1):
            (self.folder / "spool" / f"n{node}").mkdir()
            _run("slurmd", "-N", f"n{node}", "-f", str(self.config))
        deadline = time.monotonic() + 60
        while len(self._ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) < self.count:
            assert time.monotonic() < deadline, f"the nodes do not come up: {self._ask('sinfo', '-N')}"
            time.sleep(0.1)

    def down(self) -> None:
        for file in [*(self.folder / "run").glob("*.pid"), self.folder / "munge" / "pid"]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a daemon removes it, and is gone
                os.kill(int(file.read_text()), signal.SIGTERM)
        os.environ.pop("SLURM_CONF", None)

    def jobs(self) -> list[str]:
        """Ids of the jobs that are not over."""
        return self._ask("squeue", "-h", "-o", "%i").split()

    def _start_munge(self) -> None:
        munge = self.folder / "munge"
        for folder, mode in ((munge, "0755"), (munge / "lib", "0700"), (munge / "log", "0700")):
            _run("install", "-d", "-o", "munge", "-g", "munge", "-m", mode, str(folder))
        (munge / "key").write_bytes(os.urandom(1024))
        shutil.chown(munge / "key", "munge", "munge")
        (munge / "key").chmod(0o600)
        _run("setpriv", "--reuid", "munge", "--regid", "munge", "--init-groups", "munged", f"--key-file={munge}/key", f"--socket={munge}/sock",
             f"--pid-file={munge}/pid", f"--log-file={munge}/log/munged.log", f"--seed-file={munge}/lib/seed", "--force")

    def _configuration(self) -> str:
        here, (controller, *ports) = socket.gethostname().split(".")[0], _free_ports(self.count + 1)
        nodes = "".join(f"NodeName=n{n} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000 State=UNKNOWN\n"
                        for n, port in enumerate(ports, 1))
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

    def _ask(self, *argv: str) -> str:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout


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
