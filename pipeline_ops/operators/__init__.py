"""Airflow's side: DAGs, operators, triggers and the trigger form."""
