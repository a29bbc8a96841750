"""The places where jobs run: on this host, on a host over ssh, in a container, in a pod, in a Slurm job.

`place.py` has the interface. Each other module implements it for one kind of place, and has what
the launchers of gangs need of the same kind.
"""
