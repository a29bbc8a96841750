"""The gang of one training: its plan, its hosts, and its supervision."""
