"""The published versions of a model, the aliases that point at them, and initial weights."""
