"""Triggers while their store is away."""

from __future__ import annotations

import asyncio

import pytest
from object_servers.fault_proxy import FaultProxy
from object_servers.fixtures import set_environment

from pipeline_ops.orchestration.assets import RawFilesTrigger
from pipeline_ops.orchestration.trigger import JobTrigger


@pytest.mark.stores
@pytest.mark.parametrize("kind", ["job", "raw files"])
def test_a_trigger_says_once_that_the_store_is_away_and_goes_on(
    make_root, monkeypatch, tmp_path, capfd, kind
):
    """N6."""
    root = make_root("s3")
    with FaultProxy(root.server.address) as proxy:
        set_environment(monkeypatch, root.server.build_environment(proxy.address))
        if kind == "job":
            trigger = JobTrigger(root.uri, {}, "digits", "run", "train", "attempt-00000000")
        else:
            (tmp_path / "raw").mkdir()
            state = f"{root.uri}/watched/digits.json"
            trigger = RawFilesTrigger(str(tmp_path / "raw"), state, 0.5)
        with proxy.failing(refused=True), pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(anext(trigger.run()), 12))
    assert capfd.readouterr().out.count("the connection was refused") == 1
