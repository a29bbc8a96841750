"""Clusters of Flink and of Spark on this machine, for tests, with Beam's job server and workers.

The programs are fetched once (`fetch.py`).
"""
