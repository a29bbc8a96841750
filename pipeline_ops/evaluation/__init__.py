"""The evaluate job: metrics, gate and report."""
