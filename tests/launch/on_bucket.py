"""Train jobs with a bucket as storage root, started as an operator starts them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from launch.running import QUICK, config_with_hosts, find_by_text, wait_until

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout, work_folder
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.request import Status, read_status
from pipeline_ops.contract.results import WEIGHTS, TrainingFigures
from pipeline_ops.job.workspace import LOCAL_FOLDER_VARIABLE, find_local_folder
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.job_start import prepare_job, start_job
from pipeline_ops.places.local import read_identity
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import kill_group
from pipeline_ops.training.weight_files import Arrays, read_arrays


def upload_dataset(manifest: str, root: str) -> str:
    """Copies a data set to a bucket. Returns the URI of its manifest there."""
    folder, target = Path(manifest).parent, open_root(f"{root}/dataset")
    for file in folder.iterdir():
        (target / file.name).upload(file)
    return str(target / "manifest.json")


class BucketJob:
    """A train job whose storage root is a bucket.

    Args:
      folder: a folder of the test for config, hosts file, `hold` and temporary files.
      root: the URI of the storage root.
      dataset: the URI of the data set's manifest.
      hosts: the content of the hosts file.
      disk: the disk of the launcher.
      overrides: of the config.
    """

    def __init__(
        self, folder: Path, root: str, dataset: str, hosts: dict, disk: Path, **overrides: object
    ):
        self._hold, temporary = folder / "hold", folder / "temporary"
        temporary.mkdir(parents=True, exist_ok=True)
        environment = {"TMPDIR": str(temporary), "TRAINYARD_TEST_HOLD": str(folder)}
        environment |= hosts.get("environment", {})
        file = config_with_hosts(folder, hosts | {"environment": environment})
        values = {"storage__root": root} | QUICK | overrides
        config = load_config(file, {k.replace("__", "."): v for k, v in values.items()})
        plan = plan_job("train", config, "run", {"preprocess": dataset})
        os.environ[LOCAL_FOLDER_VARIABLE] = str(disk)
        os.environ["TMPDIR"] = str(temporary)
        self.artifact = open_path(plan.request.artifact)
        self.handle: JobHandle = prepare_job(plan, Layout(config.root, config.pipeline), "train")
        self.local = find_local_folder(self.handle.attempt.folder)
        start_job(plan, self.handle)
        self.process = read_identity(self.handle.attempt.process)

    @property
    def work(self) -> StorePath:
        """The work folder in the bucket."""
        return work_folder(self.artifact)

    def list_checkpoints(self) -> list[str]:
        return [entry.name for entry in self.work.list_folder() if entry.name.endswith(".json")]

    def hold(self) -> None:
        self._hold.touch()

    def release(self) -> None:
        self._hold.unlink()
        self._hold.with_name("held").unlink(missing_ok=True)

    def wait_until_held(self) -> None:
        """Waits until the chief is held at the end of the first epoch and has stored its state."""
        self.wait_until(self._hold.with_name("held").exists)
        self.wait_until(lambda: any("000000015" in name for name in self.list_checkpoints()))

    def wait_until(self, is_so, seconds: float = 240) -> None:
        def is_so_while_running() -> object:
            ended = self.handle.read_outcome()
            assert is_so() or not ended, f"{ended}\n{self.read_log()}"
            return is_so()

        wait_until(is_so_while_running, seconds, self.read_log)

    def end(self, seconds: float = 300) -> Status:
        wait_until(self.handle.has_ended, seconds, self.read_log)
        wait_until(lambda: not self.process.is_alive())
        return read_status(self.handle.attempt)

    def read_log(self) -> str:
        texts = [f"{file}:\n{file.read_text()[-3000:]}" for file in self.local.glob("*.log")]
        return "\n\n".join(texts)

    def read_events(self, worker: str = "worker 0") -> list[ProgressEvent]:
        """The reports of a worker, from the bucket."""
        return ProgressReader(self.handle.attempt.worker_progress(worker)).read_new()

    def read_steps(self, phase: str, worker: str = "worker 0") -> list[int | None]:
        return [event.done for event in self.read_events(worker) if event.phase == phase]

    def read_messages(self, phase: str) -> list[str]:
        events = ProgressReader(self.handle.attempt.progress).read_new()
        return [event.message for event in events if event.phase == phase]

    def read_figures(self) -> TrainingFigures:
        return TrainingFigures.model_validate(read_manifest(self._manifest).figures)

    def read_weights(self, target: Path) -> Arrays:
        file = read_manifest(self._manifest).get_file(WEIGHTS)
        (self.artifact.parent / file.stored_at).download(target, file.num_bytes)
        return read_arrays(target)

    @property
    def _manifest(self) -> str:
        return str(self.artifact / "manifest.json")

    def survivors(self) -> list[int]:
        return find_by_text(str(self.local))

    def kill(self) -> None:
        """Kills the job and everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        kill_group(self.process, 1.0)
        wait_until(lambda: not self.survivors())


@contextlib.contextmanager
def bucket_jobs(folder: Path, root: str, dataset: str, hosts: dict) -> Iterator:
    """Yields a function that starts jobs. They are killed afterwards."""
    before = dict(os.environ)
    started: list[BucketJob] = []

    def start(
        disk: str = "launcher", is_held: bool = False, lab: dict | None = None, **overrides: object
    ) -> BucketJob:
        (folder / disk).mkdir(exist_ok=True)
        if is_held:
            (folder / "hold").touch()
        job = BucketJob(folder, root, dataset, hosts | (lab or {}), folder / disk, **overrides)
        started.append(job)
        return job

    try:
        yield start
    finally:
        for job in started:
            job.kill()
        os.environ.clear()
        os.environ.update(before)
