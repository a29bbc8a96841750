"""A cluster of the real Kubernetes with one node."""

from .cluster import RealCluster

__all__ = ["RealCluster"]
