"""Batches of examples from shards, for training and evaluation."""
