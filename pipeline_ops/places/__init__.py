"""The places where jobs run: this host, hosts over ssh, containers, pods, jobs of Slurm.

`place.py` has the interface. Each other module implements it for one kind of place, and has what
the launchers of gangs need of the same kind.
"""
