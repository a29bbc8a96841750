"""The embedded Airflow that commands start on this machine."""
