"""The work of one training process."""
