"""The raw files of a pipeline, in a local folder or in an object store."""
