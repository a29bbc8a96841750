"""Names of a job's inputs, besides the names of earlier jobs.

They are used in requests, manifests and fingerprints.
"""

BASE = "base"
"""The data set that an incremental one is made from."""
RAW_FILES = "raw files"
"""The raw files of a data set, in the fingerprint only."""
REFERENCES = ("champion_data", "previous_data")
"""The data set that a new one is compared with. A preprocess job has at most one of them."""
WARM_START = "warm_start"
"""The initial weights of a training."""
