"""The package has what processes agree on: manifests, fingerprints, figures, messages of a job."""
