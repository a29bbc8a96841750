"""The preprocess job: turns raw data into sharded TFRecords with Apache Beam.

`docs/add-a-stage.md` describes how to add a stage.
"""
