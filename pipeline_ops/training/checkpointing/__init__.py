"""Checkpoints and the state of a training."""
