"""Shards, the quarantine and the description of a data set."""
