"""A stand-in for Airflow that starts in no time and behaves as badly as tests ask.
Found before the real one by PYTHONPATH."""
