"""Airflow's side: DAGs, operators, triggers, form, pages. Only this package imports Airflow."""
