"""What processes agree on: manifests, fingerprints and figures of artifacts, messages of a job."""
