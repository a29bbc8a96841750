"""The inside of a job's process: its start, its work folder, its inputs, and the code it runs."""
