"""Worker processes of the embedded runner, and the part of the job that a worker does."""
