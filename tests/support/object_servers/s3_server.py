"""An S3 server: moto, with threads."""

from __future__ import annotations

import sys
from pathlib import Path

from .servers import ServerProcess, send

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",  # obstore asks it if it has no key
    "AWS_ALLOW_HTTP": "true",
}
"""What a client needs besides the address. moto does not check signatures."""
_SIGNATURE = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)


class S3Server(ServerProcess):
    """An S3 server in a process of its own. Objects above 16 MB are kept in temporary files.

    Args:
      host: an address of this machine, to listen on.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__([sys.executable, Path(__file__).with_name("moto_process.py"), host])

    def make_bucket(self, name: str) -> None:
        status = send(f"{self.address}/{name}", "PUT", {"Authorization": _SIGNATURE})
        assert status == 200, f"the bucket {name} could not be made: {status}"

    def put_empty_object(self, key: str) -> None:
        """Puts an object of any key, also of one that clients refuse: `bucket/a//b`."""
        assert send(f"{self.address}/{key}", "PUT", {"Authorization": _SIGNATURE}) == 200

    def build_environment(self, address: str | None = None) -> dict[str, str]:
        """Returns the variables with which a client reaches the server, or a proxy before it."""
        return _ENVIRONMENT | {"AWS_ENDPOINT_URL": address or self.address}
