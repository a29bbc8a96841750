"""Random histories of several clients of one bucket: leases, the registry, runs and collectors.

Any client may be paused, killed or cut off at any request, and no two clocks agree. What the bucket
holds is checked again and again, and what the clients were told is compared with it in the end.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from publishers import make_version_writer
from retention.simulated_pipeline import (
    DAY,
    SimulatedPipeline,
    check_lineage,
    find_problems,
    make_config,
)
from simulated_clients import ROOT, Client, Killed, Simulation

from pipeline_ops.errors import TrainyardError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.retention.collector import Options, collect, record_use
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.lease import hold_lease

DIGESTS = st.sampled_from(["a" * 32, "b" * 32, "c" * 32])
FATES = st.sampled_from(["request lost", "answer lost", "killed before", "killed after"])
SECONDS = st.sampled_from([1.0, 20.0, 40.0, 1000.0, 1.5 * DAY])


@dataclasses.dataclass
class Operation:
    """The operation of one client, and its number."""

    kind: str
    number: int
    client: Client
    expected: int | None = None


class Histories(RuleBasedStateMachine):
    operations = Bundle("operations")

    @initialize()
    def start(self) -> None:
        self.simulation = Simulation().__enter__()
        self.folder = Path(tempfile.mkdtemp())
        keep = {"runs": 1, "days": 0, "datasets": 1}
        self.config = make_config(self.folder, ROOT, keep)
        self.root, self.registry = open_root(ROOT), Registry(f"{ROOT}/models/shared")
        self.begun: list[Operation] = []
        self.checked_writes = -1

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        try:
            self.let_all_finish()
            self.check_told()
            self.check_that_everything_works()
        finally:
            for operation in self.begun:
                self.simulation.kill(operation.client)
            self.simulation.__exit__()
            shutil.rmtree(self.folder)

    def begin(self, kind: str, function: Callable[[int], object], clock=(0.0, 1.0)) -> Operation:
        number = len(self.begun)
        client = self.simulation.start(f"machine {number}", partial(function, number), *clock)
        self.begun.append(Operation(kind, number, client))
        return self.begun[-1]

    # What clients do.

    CLOCK = st.tuples(st.sampled_from([0.0, -3000.0, 86400.0]), st.sampled_from([0.9, 1.0, 1.1]))

    @rule(target=operations, clock=CLOCK)
    def count(self, clock):
        return self.begin("count", self._count, clock)

    def _count(self, number: int) -> int:
        folder = self.root / "counter"
        with hold_lease(folder / "lock", "the counter", wait_seconds=600) as lease:
            found = [int(entry.name) for entry in (folder / "values").list_folder()]
            value = max(found, default=0) + 1
            content = f"{lease.token} {number}".encode()
            lease.commit(folder / f"values/{value:08d}", content)
            return value

    @rule(target=operations, digest=DIGESTS, clock=CLOCK)
    def publish(self, digest, clock):
        def publish(number: int) -> int:
            return self.registry.publish(digest, make_version_writer(digest, 100)).number

        return self.begin("publish", publish, clock)

    @rule(target=operations, clock=CLOCK)
    def promote(self, clock):
        def promote(number: int) -> None:
            operation = self.begun[number]
            operation.expected = self.registry.read_aliases().names.get("champion")
            newest = self.registry.list_versions()[-1:]
            if newest and newest[0].number != operation.expected:
                self.registry.promote(newest[0].number, f"move {number}", operation.expected)
                return newest[0].number
            return None

        return self.begin("promote", promote, clock)

    @rule(target=operations, clock=CLOCK)
    def roll_back(self, clock):
        return self.begin("roll back", lambda number: self.registry.roll_back(f"{number}"), clock)

    @rule(target=operations, clock=CLOCK)
    def retire(self, clock):
        return self.begin("retire", lambda number: self.registry.retire(1, "old"), clock)

    @rule(target=operations, clock=CLOCK)
    def run(self, clock):
        return self.begin("run", self._run, clock)

    def _run(self, number: int) -> None:
        """A run of the chain, whose data set references shards of the newest one."""
        pipeline = SimulatedPipeline(self.config)
        found = pipeline.layout.artifacts("preprocess").find_in_folders("manifest.json")
        newest = max(found, key=lambda entry: entry.modified, default=None)
        if newest:
            uri = str(pipeline.layout.artifacts("preprocess") / newest.name)
            pipeline.newest_dataset = uri if record_use(self.root, [uri]) else None
        pipeline.run_day(number, publish=True)

    @rule(target=operations, clock=CLOCK)
    def collect(self, clock):
        return self.begin("collect", lambda number: collect(self.config, Options()), clock)

    # What happens to them.

    @rule(operation=operations, requests=st.integers(1, 40))
    def go_on(self, operation, requests):
        for _ in range(requests):
            self.simulation.let(operation.client)

    @rule(operation=operations, fate=FATES, requests=st.integers(0, 40))
    def strike(self, operation, fate, requests):
        self.go_on(operation, requests)
        self.simulation.let(operation.client, fate)

    @rule(operations=st.lists(operations, min_size=2, max_size=3), turns=st.integers(1, 20))
    def go_on_in_turn(self, operations, turns):
        for operation in operations * turns:
            self.simulation.let(operation.client)

    @rule(seconds=SECONDS)
    def pass_time(self, seconds):
        self.simulation.now += seconds

    # What holds at any time.

    @invariant()
    def nothing_is_torn(self):
        if not hasattr(self, "simulation") or self.checked_writes == self.simulation.writes:
            return
        self.checked_writes = self.simulation.writes
        pipeline = SimulatedPipeline(self.config)
        for job in ("preprocess", "train", "evaluate", "export"):
            folder = pipeline.layout.artifacts(job)
            for entry in folder.find_in_folders("manifest.json"):
                assert find_problems(str(folder / entry.name)) == []
        check_lineage(pipeline)
        for registry in (self.registry, pipeline.registry):
            versions = registry.list_versions()
            digests = [each.read_manifest().inputs["train"].digest for each in versions]
            assert len(digests) == len(set(digests)), "a training was published twice"
            for version in versions:
                assert find_problems(version.uri) == []
            names = registry.read_aliases().names
            assert set(names.values()) <= {version.number for version in versions}

    # What holds in the end.

    def let_all_finish(self) -> None:
        for operation in itertools.cycle(self.begun):
            if all(each.client.is_over for each in self.begun):
                break
            self.simulation.let(operation.client)
        self.nothing_is_torn()
        for operation in self.begun:
            error = operation.client.error
            assert error is None or isinstance(error, TrainyardError | Killed), operation

    def check_told(self) -> None:
        """Each success that a client was told is in the bucket, once and in order."""
        values = (self.root / "counter/values").list_folder()
        assert [int(entry.name) for entry in values] == list(range(1, len(values) + 1))
        contents = [(self.root / f"counter/values/{entry.name}").read() for entry in values]
        pairs = [tuple(map(int, content.split())) for content in contents]
        tokens, writers = [token for token, _ in pairs], [writer for _, writer in pairs]
        assert tokens == sorted(set(tokens)), "a holder has written after a later one"
        assert len(writers) == len(set(writers)), "a client has counted twice"
        present = self.registry.read_aliases()
        known = {version.number for version in self.registry.list_versions()} | {*present.retired}
        moves = self.registry.read_history().moves
        for operation in self.begun:
            if operation.client.error:
                continue
            result = operation.client.result
            if operation.kind == "count":
                assert writers[result - 1] == operation.number
            elif operation.kind == "publish":
                assert result in known
            elif operation.kind == "promote" and result is not None:
                [place] = [
                    place
                    for place, move in enumerate(moves)
                    if move.reason == f"move {operation.number}"
                ]
                champions = [each.version for each in moves[:place] if each.alias == "champion"]
                assert (champions or [None])[-1] == operation.expected
                assert moves[place].version == result

    def check_that_everything_works(self) -> None:
        """No client has left a lock or a leftover that stops the next ones."""
        self.simulation.now += 2 * DAY
        for kind, function in (
            ("count", self._count),
            ("run", self._run),
            ("collect", lambda _: collect(self.config, Options())),
        ):
            operation = self.begin(kind, function)
            while self.simulation.let(operation.client):
                pass
            if operation.client.error:
                raise operation.client.error
        self.nothing_is_torn()


@pytest.mark.parametrize(
    "examples",
    [20, pytest.param(300, marks=[pytest.mark.faults, pytest.mark.timeout(1200)])],
)
def test_no_update_is_lost_and_nothing_needed_is_removed(examples):
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=examples < 100,
            suppress_health_check=list(HealthCheck),
        ),
    )
