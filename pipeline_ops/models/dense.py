"""Dense layers only: small, quick, and wide on demand."""

from __future__ import annotations

from keras import Input, Model, Sequential, layers


def build(
    image_shape: tuple[int, int, int], num_classes: int, units: int = 64, hidden_layers: int = 1
) -> Model:
    """Builds `hidden_layers` layers of `units` units each, with ReLU."""
    return Sequential(
        [
            Input(image_shape, name="images"),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            *(
                layers.Dense(units, activation="relu", name=f"hidden_{number}")
                for number in range(hidden_layers)
            ),
            layers.Dense(num_classes, dtype="float32", name="logits"),
        ]
    )
