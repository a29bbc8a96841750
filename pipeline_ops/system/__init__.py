"""Processes, temporary folders and the disk cache of a host."""
