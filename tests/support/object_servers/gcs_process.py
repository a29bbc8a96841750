"""The process of the GCS server. It prints its address, and ends when its standard input is closed.

obstore speaks Google's XML API, and gcp-storage-emulator its JSON API, so a front translates.

The emulator keeps the objects, their generations, times and checksums; it lists by prefix and
delimiter, serves ranges, copies and removes. The front does what the emulator does not do:
`x-goog-if-generation-match` and `If-Match`, pages of a listing, multipart uploads, 416, ranges at
the end, and what HEAD answers. Its conditions hold because it serves one request after the other;
whether Google's own servers are as strict, no test with it can tell.
"""

from __future__ import annotations

import http.client
import http.server
import json
import logging
import re
import sys
import threading
import uuid
from datetime import datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from gcp_storage_emulator.server import create_server
from gcp_storage_emulator.storage import Storage

_HOST = "127.0.0.1"
_PAGE = 1000
_BOUNDARY = "trainyard"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class GcsError(Exception):
    """An answer that is an error of the XML API."""

    def __init__(self, status: int, code: str):
        super().__init__(code)
        self.status = status


class Emulator:
    """The JSON API of the emulator, for one bucket."""

    def __init__(self, port: int, bucket: str):
        self._port = port
        self.bucket = bucket
        self._objects = f"/storage/v1/b/{bucket}/o"

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(_HOST, self._port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def make_bucket(self) -> int:
        body = json.dumps({"name": self.bucket}).encode()
        kind = {"Content-Type": "application/json"}
        status, _ = self.send("POST", "/storage/v1/b", body, **kind)
        # Otherwise the emulator keeps removed objects for a week, in memory.
        policy = json.dumps({"softDeletePolicy": {"retentionDurationSeconds": 0}}).encode()
        self.send("PATCH", f"/storage/v1/b/{self.bucket}", policy, **kind)
        return status

    def check_bucket(self) -> None:
        if not self.bucket or self.send("GET", f"/storage/v1/b/{self.bucket}")[0] == 404:
            raise GcsError(404, "NoSuchBucket")

    def find(self, key: str) -> dict[str, Any] | None:
        """An object as the emulator knows it."""
        status, body = self.send("GET", f"{self._objects}/{quote(key, safe='')}")
        return json.loads(body) if status == 200 else None

    def read(self, key: str, byte_range: str | None) -> bytes:
        headers = {"Range": byte_range} if byte_range else {}
        path = f"/download{self._objects}/{quote(key, safe='')}?alt=media"
        return self.send("GET", path, **headers)[1]

    def write(self, key: str, data: bytes) -> dict[str, Any]:
        path = f"/upload{self._objects}?name={quote(key, safe='')}&uploadType="
        if data:
            kind = {"Content-Type": "application/octet-stream"}
            return json.loads(self.send("POST", f"{path}media", data, **kind)[1])
        # The emulator fails on an empty body.
        parts = "".join(f"--{_BOUNDARY}\r\nContent-Type: {t}\r\n\r\n{b}\r\n" for t, b in _EMPTY)
        kind = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
        body = f"{parts}--{_BOUNDARY}--\r\n".encode()
        return json.loads(self.send("POST", f"{path}multipart", body, **kind)[1])

    def copy(self, source: str, target: str) -> dict[str, Any]:
        bucket, _, key = source.lstrip("/").partition("/")
        path = f"/storage/v1/b/{bucket}/o/{quote(unquote(key), safe='')}/copyTo/b/{self.bucket}"
        status, body = self.send("POST", f"{path}/o/{quote(target, safe='')}")
        if status == 404:
            raise GcsError(404, "NoSuchKey")
        return json.loads(body)

    def remove(self, key: str) -> None:
        if self.send("DELETE", f"{self._objects}/{quote(key, safe='')}")[0] == 404:
            raise GcsError(404, "NoSuchKey")

    def list(self, prefix: str, delimiter: str) -> list[tuple[str, dict[str, Any] | None]]:
        """Names in order: objects with what is known about them, and common prefixes."""
        query = f"prefix={quote(prefix, safe='')}&delimiter={quote(delimiter, safe='')}"
        found = json.loads(self.send("GET", f"{self._objects}?{query}")[1])
        objects: list[tuple[str, dict[str, Any] | None]] = [(o["name"], o) for o in found["items"]]
        return sorted(objects + [(name, None) for name in found["prefixes"]], key=lambda e: e[0])


_EMPTY = (("application/json", "{}"), ("application/octet-stream", ""))
_LOCK = threading.Lock()
_UPLOADS: dict[str, dict[int, bytes]] = {}


class Front(http.server.BaseHTTPRequestHandler):
    """The XML API for one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    emulator_port: int

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = url.path[1:].partition("/")
        emulator = Emulator(self.emulator_port, bucket)
        try:
            with _LOCK:
                self._answer(emulator, unquote(key), query, body)
        except GcsError as error:
            text = f"<Error><Code>{error}</Code><Message>{error}</Message></Error>"
            self._give(error.status, text.encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _answer(self, emulator: Emulator, key: str, query: dict[str, str], body: bytes) -> None:
        if not key and self.command == "PUT":
            self._give(emulator.make_bucket())
            return
        emulator.check_bucket()
        if not key:
            self._list(emulator, query)
        elif "uploads" in query or "uploadId" in query:
            self._upload(emulator, key, query, body)
        elif self.command == "PUT":
            self._check_generation(emulator, key)
            source = self.headers.get("x-goog-copy-source")
            self._stored(emulator.copy(source, key) if source else emulator.write(key, body))
        elif self.command == "DELETE":
            self._check_generation(emulator, key)
            emulator.remove(key)
            self._give(204)
        else:
            self._read(emulator, key)

    def _check_generation(self, emulator: Emulator, key: str) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        if (
            wanted is not None
            and wanted != (emulator.find(key) or {"generation": "0"})["generation"]
        ):
            raise GcsError(412, "PreconditionFailed")

    def _stored(self, found: dict[str, Any], body: bytes = b"") -> None:
        self._give(200, body, ETag=_tag(found), **{"x-goog-generation": found["generation"]})

    def _read(self, emulator: Emulator, key: str) -> None:
        found = emulator.find(key)
        if found is None:
            raise GcsError(404, "NoSuchKey")
        if self.headers.get("If-Match", _tag(found)) != _tag(found):
            raise GcsError(412, "PreconditionFailed")
        size = int(found["size"])
        headers = {
            "ETag": _tag(found),
            "x-goog-generation": found["generation"],
            "Last-Modified": format_datetime(datetime.fromisoformat(found["updated"]), usegmt=True),
        }
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if self.command == "HEAD":
            self._give(200, num_bytes=size, **headers)
        elif wanted is None:
            self._give(200, emulator.read(key, None), **headers)
        else:
            start, end = (int(part) if part else None for part in wanted.groups())
            if start is None:
                start, end = max(0, size - (end or 0)), None
            last = size - 1 if end is None else min(end, size - 1)
            if start > last:
                raise GcsError(416, "InvalidRange")
            headers["Content-Range"] = f"bytes {start}-{last}/{size}"
            self._give(206, emulator.read(key, f"bytes={start}-{last}"), **headers)

    def _list(self, emulator: Emulator, query: dict[str, str]) -> None:
        after = query.get("continuation-token") or query.get("start-after", "")
        listed = emulator.list(query.get("prefix", ""), query.get("delimiter", ""))
        left = [entry for entry in listed if entry[0] > after]
        page = left[: int(query.get("max-keys", _PAGE))]
        parts = [f"<IsTruncated>{str(len(left) > len(page)).lower()}</IsTruncated>"]
        if len(left) > len(page):
            parts.append(f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>")
        for name, found in page:
            if found is None:
                parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                parts.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{found['size']}</Size>"
                    f"<LastModified>{found['updated']}</LastModified>"
                    f"<ETag>{escape(_tag(found))}</ETag></Contents>"
                )
        self._give(200, f"<ListBucketResult>{''.join(parts)}</ListBucketResult>".encode())

    def _upload(self, emulator: Emulator, key: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            upload = uuid.uuid4().hex
            _UPLOADS[upload] = {}
            result = f"<UploadId>{upload}</UploadId>"
            self._give(
                200,
                f"<InitiateMultipartUploadResult>{result}</InitiateMultipartUploadResult>".encode(),
            )
            return
        parts = _UPLOADS.get(query["uploadId"])
        if parts is None:
            raise GcsError(404, "NoSuchUpload")
        if self.command == "PUT":
            number = int(query["partNumber"])
            parts[number] = body
            self._give(200, ETag=f'"{number}"')
            return
        if self.command == "POST":
            numbers = [int(n.text or 0) for n in ElementTree.fromstring(body).iter("PartNumber")]
            if not parts.keys() >= set(numbers):
                raise GcsError(400, "InvalidPart")
            found = emulator.write(key, b"".join(parts[number] for number in numbers))
            result = f"<ETag>{escape(_tag(found))}</ETag>"
            text = f"<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>"
            self._stored(found, text.encode())
        else:
            self._give(204)
        del _UPLOADS[query["uploadId"]]

    def _give(
        self, status: int, body: bytes = b"", num_bytes: int | None = None, **headers: str
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if num_bytes is None else num_bytes))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(found: dict[str, Any]) -> str:
    return f'"{found["etag"]}"'


def main() -> None:
    logging.disable()  # it reports each question for a missing object
    # After each change it would write what it knows about all objects, to a file in memory that is
    # read at its start only. With a thousand objects that takes 10 ms.
    Storage._write_config_to_file = lambda self: None
    # The port is taken and left again: the emulator does not tell which one it has been given.
    with http.server.HTTPServer((_HOST, 0), Front) as free:
        Front.emulator_port = free.server_port
    with create_server(_HOST, Front.emulator_port, in_memory=True):
        server = http.server.ThreadingHTTPServer((_HOST, 0), Front)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://{_HOST}:{server.server_port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
