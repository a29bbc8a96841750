"""The YAML of a pipeline: its sections, the rules over them, and the messages about errors."""
