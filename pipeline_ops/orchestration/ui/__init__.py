"""The Airflow plugin: progress, reports and the model registry inside Airflow's own UI.

It runs in Airflow's API server.
"""
