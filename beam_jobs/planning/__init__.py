"""Decisions about a data set before it is built: splits, shards, deltas, duplicates."""
