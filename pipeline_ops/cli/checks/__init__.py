"""The checks of `trainyard doctor`, each a generator of findings."""
