"""A session cluster of Flink: a JobManager and TaskManagers."""

from __future__ import annotations

import os

from .cluster import JAVA_MODULES, Cluster, EngineJob, fetch_json, find_free_ports

_MEMORY = {
    # A TaskManager that no script of Flink starts needs all of these.
    "taskmanager.cpu.cores": "1.0",
    "taskmanager.memory.task.heap.size": "384m",
    "taskmanager.memory.task.off-heap.size": "64m",
    # Enough for two slots: the survivor takes over the work of a lost node.
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
    "taskmanager.memory.managed.size": "128m",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
}
_FAULTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "3",
    "restart-strategy.fixed-delay.delay": "2 s",
    "heartbeat.timeout": "10000",
    "heartbeat.interval": "2000",
}
_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1} - %m%n
"""
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


class FlinkCluster(Cluster):
    """A JobManager, TaskManagers, a pool for each, and a job server.

    A TaskManager has twice the slots, so that the work of a lost one finds a place.
    """

    name = "flink"

    def list_jobs(self) -> list[EngineJob]:
        found = fetch_json(f"{self.url}/jobs/overview")["jobs"]
        return [EngineJob(job["jid"], job["name"], job["state"]) for job in found]

    def cancel_job(self, job: str) -> None:
        """Asks Flink to cancel a job. It goes on for a moment."""
        fetch_json(f"{self.url}/jobs/{job}?mode=cancel", "PATCH")

    def kill_node(self, index: int = 0) -> None:
        self._kill_group(f"node{index}")

    def _start_engine(self) -> None:
        rest, rpc = find_free_ports(2)
        self._rest = f"127.0.0.1:{rest}"
        self.url = f"http://{self._rest}"
        self._conf = self.account.make_folder("conf")
        self._write_configuration(rest, rpc)
        self._start_java("job-manager", _JOB_MANAGER, "-XX:MaxMetaspaceSize=256m")
        for i, name in enumerate(self.node_names):
            hosts = self._conf / f"hosts{i}"
            self._write_hosts(hosts, i)
            options = ("-XX:MaxDirectMemorySize=384m", "-XX:MaxMetaspaceSize=256m")
            self._start_java(name, _TASK_MANAGER, f"-Djdk.net.hosts.file={hosts}", *options)

    def _write_configuration(self, rest: int, rpc: int) -> None:
        temporary = self.account.make_folder("tmp")
        values = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": rpc,
            "jobmanager.bind-host": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": rest,
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": 2 * self.slots,
            "cluster.evenly-spread-out-slots": "true",
            "io.tmp.dirs": temporary,
            "blob.storage.directory": temporary,
            **_MEMORY,
            **_FAULTS,
            **self._settings,
        }
        lines = [f"{key}: {value}\n" for key, value in values.items()]
        (self._conf / "config.yaml").write_text("".join(lines))
        (self._conf / "log4j.properties").write_text(_LOGGING)

    def _start_java(self, name: str, main_class: str, *options: str) -> None:
        jars = os.pathsep.join(map(str, self.programs.jars))
        logging = f"-Dlog4j.configurationFile=file:{self._conf}/log4j.properties"
        java = ["java", "-Xmx512m", *options, *JAVA_MODULES, logging, "-cp", jars]
        self._start(name, [*java, main_class, "--configDir", self._conf])

    def _build_job_server_command(self) -> tuple[list[str], dict[str, str]]:
        java = ["java", "-Xmx512m", *JAVA_MODULES, "-jar", str(self.programs.job_server)]
        return [*java, f"--flink-master={self._rest}"], {}

    def _is_ready(self) -> bool:
        found = fetch_json(f"{self.url}/overview")
        return found["taskmanagers"] == self.num_nodes
