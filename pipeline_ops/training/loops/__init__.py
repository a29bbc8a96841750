"""The training loops, one for each kind of strategy."""
