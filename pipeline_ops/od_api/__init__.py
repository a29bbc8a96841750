"""Import of a `pipeline.config` of the TensorFlow Object Detection API as a pipeline of ours."""
