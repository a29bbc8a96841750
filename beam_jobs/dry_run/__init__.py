"""Checks and previews that read the source and run a few images, without building a data set."""
