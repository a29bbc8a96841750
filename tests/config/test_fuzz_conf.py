"""Hostile confs: whatever a conf holds,
it is refused as a config error or changes nothing but fields that a run may set.

TRAINYARD_FUZZ_CASES says how many cases are tried.
"""

from __future__ import annotations

import os
from typing import Any

from config_files import DIGITS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline_ops.config.fields import collect_fields
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.run_conf import apply_conf, parse_conf
from pipeline_ops.errors import ConfigError

CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", "300"))
AUTHOR, LEAVES = load_config(DIGITS), collect_fields(PipelineConfig)
_OFTEN = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters(exclude_categories=()), max_size=40)  # with lone surrogates
keys = st.one_of(
    st.sampled_from(sorted(LEAVES)),
    st.sampled_from([key.replace("[]", ".0") for key in LEAVES]),
    st.builds("{}.{}".format, st.sampled_from(sorted(LEAVES)), texts),
    texts,
    st.integers(),
    st.none(),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    texts,
    st.just("a" * 5000),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)


@_OFTEN
@given(st.one_of(st.dictionaries(keys, values, max_size=4), values))
def test_a_conf_is_refused_as_a_config_error_or_sets_what_a_run_may_set(conf: Any):
    try:
        overrides = parse_conf(AUTHOR, conf)
    except ConfigError as error:
        assert str(error).encode()
        return
    assert all(LEAVES[key].is_per_run for key in overrides if not key.endswith(".type"))
    assert all(
        value is None or isinstance(value, bool | int | float | str) for value in overrides.values()
    )


@settings(_OFTEN, max_examples=max(CASES // 20, 1))
@given(
    st.dictionaries(
        st.sampled_from([key for key, leaf in LEAVES.items() if leaf.is_per_run]),
        scalars,
        min_size=1,
        max_size=3,
    )
)
def test_a_whole_config_with_such_a_conf_is_valid_or_refused(conf: dict[str, Any]):
    try:
        config = apply_conf(load_config(DIGITS), conf)
    except ConfigError:
        return
    for task in ("preprocess", "train", "evaluate", "export"):
        before, after = getattr(AUTHOR, task).model_dump(), getattr(config, task).model_dump()
        changed = {name for name in before if before[name] != after[name]}
        assert changed <= {key.split(".")[1] for key in conf if key.startswith(f"{task}.")}
