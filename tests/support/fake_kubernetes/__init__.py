"""A cluster on this machine that speaks the API of Kubernetes, for the official client.

It is for what the real cluster of the tests can't do or is too slow for: answers that are late,
lost or errors, a right that is missing or not needed, a node without room or without power, an old
protocol, and a quick test of a job or a gang.

What is real: HTTPS, tokens and the rules of a Role, the published schemas in strict mode,
conflicts, websockets for `exec`, and the processes: each container's command runs on this machine,
with the variables that the pod has.
What is not: there is no isolation, no image, no network between pods and no scheduler. A pod sees
this machine's files, and its /work, /tmp and /dev/shm are folders whose paths are put into its
variables. What a test does to a pod (eviction, loss of the node, ...) leaves the fields that the
documentation of Kubernetes describes. No cluster has recorded them.
"""

from __future__ import annotations

from .cluster import KubernetesCluster

__all__ = ["KubernetesCluster"]
