"""Protobuf messages that are declared here, because their own package would import TensorFlow.

The messages are in descriptor pools of their own, so they do not clash with TensorFlow's in a
process that has both.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format


def define_message(name: str, definition: str) -> Any:
    """The class of a message.

    Args:
      name: the full name of the message.
      definition: the file that declares it: a FileDescriptorProto in protobuf's text format.
    """
    file = text_format.Parse(definition, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
