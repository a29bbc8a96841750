"""Names of a job's inputs, beside those of the jobs before it: in requests, manifests and fingerprints."""

BASE = "base"
"""The data set that an incremental one is made from."""
RAW_FILES = "raw files"
"""The raw files of a data set. They are in the fingerprint only."""
REFERENCES = ("champion_data", "previous_data")
"""The data set that a new one is compared with. A preprocess job has at most one of them."""
WARM_START = "warm_start"
"""The weights that a training begins with."""
