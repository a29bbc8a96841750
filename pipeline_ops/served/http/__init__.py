"""The HTTP server of `trainyard serve`."""
