"""The model as it is served."""
