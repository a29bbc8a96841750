"""The Airflow plugin: progress, reports and the model registry inside Airflow's own UI. Runs in Airflow's API server."""
