"""The published versions of a model, and the aliases that point at them."""
