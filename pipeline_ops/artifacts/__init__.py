"""Artifacts: their manifests, fingerprints, places, and the contents of their figures."""
