"""Import of a `pipeline.config` of the TensorFlow Object Detection API as a pipeline of ours.

Used by `trainyard import-od-api`.

    text_proto.py   protobuf's text format, read without the API's message definitions
    reader.py       a message whose fields are taken one by one; it knows the remaining ones
    data.py         records, label map and image size
    model.py        the nearest model
    training.py     steps, optimizer, schedule, random changes
    convert.py      all of it as YAML, with the fields that have no counterpart
"""
