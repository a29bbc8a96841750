"""Trainyard: one YAML file becomes an Airflow DAG that retrains a TensorFlow model."""
