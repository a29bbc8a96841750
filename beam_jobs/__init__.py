"""The preprocess job: raw data to sharded TFRecords, with Apache Beam. `README.md` says how to add a stage."""
