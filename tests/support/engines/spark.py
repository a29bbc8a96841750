"""A standalone cluster of Spark: a master and workers, each of which starts an executor per job."""

from __future__ import annotations

import psutil

from .cluster import JAVA_MODULES, Cluster, EngineJob, fetch_json, find_free_ports
from .fetch import EngineError

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DRIVER = "org.apache.beam.runners.spark.SparkJobServerDriver"


class SparkCluster(Cluster):
    """A master, workers, a pool for each, and a job server, in which the driver of a job runs."""

    name = "spark"

    def list_jobs(self) -> list[EngineJob]:
        found = fetch_json(f"{self.url}/json/")
        return [
            EngineJob(job["id"], job["name"], job["state"])
            for job in (*found["activeapps"], *found["completedapps"])
        ]

    def find_executors(self, index: int) -> list[psutil.Process]:
        """Returns the executors of one worker: one for each job that runs."""
        return [
            process
            for process in self.find_processes(f"node{index}")
            if _EXECUTOR in process.cmdline()
        ]

    def kill_node(self, index: int = 0) -> None:
        """Kills the executors of a worker. The worker starts new ones."""
        found = self.find_executors(index)
        if not found:
            raise EngineError(f"worker {index} has no executor now")
        for process in found:
            process.kill()

    def _start_engine(self) -> None:
        master, page, *pages = find_free_ports(2 + self.num_nodes)
        self._master = f"spark://127.0.0.1:{master}"
        self.url = f"http://127.0.0.1:{page}"
        words = ["--host", "127.0.0.1", "--port", master, "--webui-port", page]
        self._start_java("master", _MASTER, *words)
        self._wait("master", lambda: fetch_json(f"{self.url}/json/")["status"] == "ALIVE")
        for i, name in enumerate(self.node_names):
            folder = self.account.make_folder(name)
            self._write_hosts(folder / "hosts", i)
            words = ["--host", "127.0.0.1", "--cores", self.slots, "--memory", "1g"]
            words += ["--webui-port", pages[i], "--work-dir", folder, self._master]
            self._start_java(name, _WORKER, *words)

    @property
    def _variables(self) -> dict[str, str]:
        return {
            "SPARK_HOME": str(self.programs.folder),
            "SPARK_SCALA_VERSION": "2.12",  # else it looks for the folders of a build of Spark
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(self.account.make_folder("conf")),
        }

    def _start_java(self, name: str, main_class: str, *words: object) -> None:
        java = ["java", "-Xmx512m", *JAVA_MODULES, "-cp", f"{self.programs.folder}/jars/*"]
        self._start(name, [*java, main_class, *words], self._variables)

    def _build_job_server_command(self) -> tuple[list[str], dict[str, str]]:
        # An executor works in NODE/APPLICATION/NUMBER.
        executor = " ".join((*JAVA_MODULES, "-Djdk.net.hosts.file=../../hosts"))
        properties = {
            "spark.executor.extraJavaOptions": executor,
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **self._settings,
        }
        jars = f"{self.programs.job_server}:{self.programs.folder}/jars/*"
        options = [f"-D{name}={value}" for name, value in properties.items()]
        java = ["java", "-Xmx512m", *JAVA_MODULES, *options, "-cp", jars, _DRIVER]
        return [*java, f"--spark-master-url={self._master}"], self._variables

    def _is_ready(self) -> bool:
        return fetch_json(f"{self.url}/json/")["aliveworkers"] == self.num_nodes
