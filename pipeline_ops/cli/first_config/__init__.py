"""The first config of a pipeline, made from the facts about a data set. See `trainyard init`."""
