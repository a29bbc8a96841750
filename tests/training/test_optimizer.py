"""The learning rate of each step as a table, and the sharded optimizer compared with Keras."""

from __future__ import annotations

import pytest

from pipeline_ops.config.train import Constant, Cosine, Exponential, Optimizer, Piecewise


@pytest.mark.parametrize(
    "schedule, factors",
    [
        (Constant(), {0: 1, 10: 1, 1000: 1}),
        (Constant(warmup_steps=3), {0: 1 / 4, 1: 2 / 4, 2: 3 / 4, 3: 1, 4: 1}),
        (Cosine(type="cosine"), {0: 1, 25: 0.853553, 50: 0.5, 75: 0.146447, 100: 0, 120: 0}),
        (
            Cosine(type="cosine", warmup_steps=20, end_factor=0.1),
            {0: 1 / 21, 19: 20 / 21, 20: 1, 60: 0.55, 100: 0.1},
        ),
        (Cosine(type="cosine", decay_steps=10), {0: 1, 5: 0.5, 10: 0, 90: 0}),
        (
            Exponential(type="exponential", decay_steps=10, factor=0.5),
            {0: 1, 5: 0.5**0.5, 10: 0.5, 30: 0.125},
        ),
        (
            Exponential(type="exponential", decay_steps=10, factor=0.5, warmup_steps=10),
            {9: 10 / 11, 10: 1, 20: 0.5},
        ),
        (Constant(warmup_steps=4, warmup_factor=0.2), {0: 0.2, 1: 0.4, 2: 0.6, 3: 0.8, 4: 1}),
        (Constant(warmup_steps=4, warmup_factor=0), {0: 0, 1: 0.25, 3: 0.75, 4: 1}),
        (
            Constant(warmup_steps=4, warmup_factor=0.2, warmup_type="constant"),
            {0: 0.2, 3: 0.2, 4: 1},
        ),
        (
            Cosine(type="cosine", warmup_steps=20, hold_steps=30),
            {20: 1, 49: 1, 50: 1, 75: 0.5, 100: 0},
        ),
        (
            Cosine(type="cosine", hold_steps=30, decay_steps=10),
            {0: 1, 30: 1, 35: 0.5, 40: 0, 90: 0},
        ),
        (
            Exponential(
                type="exponential", decay_steps=10, factor=0.5, staircase=True, min_factor=0.2
            ),
            {0: 1, 9: 1, 10: 0.5, 19: 0.5, 20: 0.25, 30: 0.2, 99: 0.2},
        ),
        (
            Exponential(
                type="exponential",
                decay_steps=10,
                factor=0.5,
                warmup_steps=10,
                warmup_factor=0.1,
                min_factor=0.3,
            ),
            {0: 0.3, 5: 0.55, 10: 1, 20: 0.5, 40: 0.3},
        ),
        (
            Piecewise(type="piecewise", boundaries_steps=[10, 20], factors=[0.1, 0.01]),
            {0: 1, 9: 1, 10: 0.1, 19: 0.1, 20: 0.01, 99: 0.01},
        ),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_the_learning_rate_is_a_function_of_the_step(schedule, factors):
    from pipeline_ops.training.optimizer import compute_schedule_factor

    assert {
        step: compute_schedule_factor(schedule, step, 100) for step in factors
    } == pytest.approx(factors, abs=1e-6)


@pytest.mark.parametrize(
    ("module", "options", "rates"),
    [
        (
            "keras.optimizers.schedules:PolynomialDecay",
            {"initial_learning_rate": 0.1, "decay_steps": 10, "end_learning_rate": 0.0},
            {0: 0.1, 5: 0.05, 10: 0.0},
        ),
        ("my_schedules:fall", {"power": 2}, {0: 1.0, 50: 0.25, 100: 0.0}),
    ],
    ids=str,
)
def test_schedules_of_keras_and_of_ones_own_are_functions_of_the_step(
    tmp_path, module, options, rates
):
    from pipeline_ops.training.optimizer import load_schedule

    (tmp_path / "my_schedules.py").write_text(
        "def fall(step, total_steps, power):\n    return (1 - step / total_steps) ** power\n"
    )
    schedule = {"type": "own", "function": module, "arguments": options}
    config = Optimizer.model_validate({"learning_rate": 1, "schedule": schedule})
    compute = load_schedule(config, tmp_path)
    assert {step: compute(step, 100) for step in rates} == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weight_decay_of_sgd_is_taken_off_the_weights_before_the_step_in_one_piece_and_in_several(
    momentum,
):
    import numpy as np
    import tensorflow as tf

    from pipeline_ops.config.train import Optimizer
    from pipeline_ops.training.optimizer import ShardedOptimizer, make_optimizer

    config = Optimizer(name="sgd", learning_rate=0.1, momentum=momentum, weight_decay=0.5)
    start, gradients = (
        np.array([1.0, -2.0, 3.0], np.float32),
        [np.full(3, value, np.float32) for value in (1.0, 0.5, -1.0)],
    )
    whole, pieces = tf.Variable(start), [tf.Variable(start[:2]), tf.Variable(start[2:])]
    optimizer = make_optimizer(config)
    piecewise = ShardedOptimizer(
        config, [whole], [pieces], tf.Variable, lambda like: tf.Variable(tf.zeros_like(like))
    )
    by_hand, velocity = start.copy(), np.zeros(3, np.float32)
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), whole)])
        piecewise.apply([tf.constant(gradient)], tf.constant(0.1), {})
        velocity = momentum * velocity - 0.1 * gradient
        by_hand = by_hand * (1 - 0.1 * 0.5) + velocity
    assert whole.numpy() == pytest.approx(by_hand, rel=1e-6)
    assert np.concatenate([piece.numpy() for piece in pieces]) == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        {"name": "sgd", "momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
        {"name": "adam", "epsilon": 0.1},
        {"name": "adamw", "epsilon": 1e-8, "weight_decay": 0.1},
        {"name": "rmsprop", "epsilon": 1.0, "momentum": 0.9},
    ],
)
def test_weights_in_several_pieces_are_those_of_keras(options):
    import keras
    import numpy as np
    import tensorflow as tf

    from pipeline_ops.config.train import Optimizer
    from pipeline_ops.training.optimizer import ShardedOptimizer, make_optimizer

    classes = {
        "sgd": keras.optimizers.SGD,
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "rmsprop": keras.optimizers.RMSprop,
    }
    by_keras = classes[options["name"]](
        learning_rate=0.1, **{key: value for key, value in options.items() if key != "name"}
    )
    config = Optimizer(learning_rate=0.1, **options)
    ours = make_optimizer(config)
    start = np.array([1.0, -2.0, 3.0], np.float32)
    whole, other = tf.Variable(start), tf.Variable(start)
    pieces = [tf.Variable(start[:2]), tf.Variable(start[2:])]
    piecewise = ShardedOptimizer(
        config, [whole], [pieces], tf.Variable, lambda like: tf.Variable(tf.zeros_like(like))
    )
    for gradient in (1.0, 0.5, -1.0, 0.01):
        gradient = tf.constant([gradient, -gradient, 0.1 * gradient])
        by_keras.apply_gradients([(gradient, other)])
        ours.apply_gradients([(gradient, whole)])
        piecewise.apply([gradient], tf.constant(0.1), {})
    assert whole.numpy() == pytest.approx(other.numpy(), rel=1e-6)
    assert np.concatenate(pieces) == pytest.approx(other.numpy(), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "sgd", "epsilon": 0.1}, "epsilon is for adam, adamw, rmsprop, got it with sgd"),
        ({"name": "adam", "nesterov": True}, "nesterov is for sgd, got it with adam"),
        ({"name": "sgd", "nesterov": True}, "nesterov needs a momentum above 0"),
        ({"name": "adam", "rho": 0.5}, "rho is for rmsprop, got it with adam"),
    ],
)
def test_a_key_of_another_optimizer_is_refused(options, problem):
    from pipeline_ops.config.train import Optimizer

    with pytest.raises(ValueError, match=problem):
        Optimizer(**options)


@pytest.mark.parametrize("num_steps, decay", [(1, 0.999), (5, 0.9), (40, 0.999), (40, 0.1)])
def test_averaged_weights_are_warmed_up_in_one_piece_and_in_several(num_steps, decay):
    """With the plain decay of 0.999, 40 steps would leave 96 percent of the initial weights in the
    average."""
    import numpy as np
    import tensorflow as tf

    from pipeline_ops.config.train import Optimizer
    from pipeline_ops.training.optimizer import ShardedOptimizer, make_optimizer

    config = Optimizer(name="sgd", learning_rate=0.1, average_weights=decay)
    whole, pieces = tf.Variable([100.0, -100.0]), [tf.Variable([100.0]), tf.Variable([-100.0])]
    optimizer = make_optimizer(config)
    piecewise = ShardedOptimizer(
        config, [whole], [pieces], tf.Variable, lambda like: tf.Variable(tf.zeros_like(like))
    )
    by_hand, average = np.array([100.0, -100.0]), np.zeros(2)
    for step in range(num_steps):
        gradient = by_hand  # towards zero
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), whole)])
        piecewise.apply([tf.constant(gradient, tf.float32)], tf.constant(0.1), {})
        by_hand = by_hand - 0.1 * gradient
        kept = 0 if step == 0 else min(decay, (1 + step) / (10 + step))
        average = kept * average + (1 - kept) * by_hand
    [averaged] = optimizer._model_variables_moving_average
    assert averaged.numpy() == pytest.approx(average, rel=1e-4)
    [parts] = piecewise.averages
    assert np.concatenate([part.numpy() for part in parts]) == pytest.approx(average, rel=1e-4)
    assert num_steps < 40 or abs(average[0]) < 15  # and the weights began with 100
