"""Sums over all workers: TensorFlow's, and a ring of sockets for CPUs."""
