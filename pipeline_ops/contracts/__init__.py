"""The shared vocabulary. Every other package meets here; nothing here imports Airflow, TensorFlow, Keras or Beam."""
