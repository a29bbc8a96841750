"""The preprocess job: turns raw data into sharded TFRecords with Apache Beam.

`README.md` describes how to add a stage.
"""
