"""The data of the example pipelines in `configs/`."""
