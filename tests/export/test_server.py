"""`trainyard serve` as a process of its own, with requests of curl, of TensorFlow Serving and of a
browser."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
import zlib

import numpy as np
import pytest
from export.serve_process import as_b64


def test_curl_gets_a_prediction(server, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"instances": [as_b64(server.encoded[0])]}))
    response = subprocess.run(
        [
            "curl",
            "--silent",
            "--fail",
            "--noproxy",
            "*",
            "--data",
            f"@{body}",
            f"{server.address}/v1/models/digits:predict",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    [prediction] = json.loads(response.stdout)["predictions"]
    assert (
        prediction["classes"] == int(np.argmax(prediction["probabilities"]))
        and len(prediction["probabilities"]) == 10
    )


def test_files_with_and_without_their_name_get_the_answer_of_the_model(server):
    import tensorflow as tf

    encoded = [as_b64(image) for image in server.encoded[:5]]
    found = server.predict(instances=encoded)["predictions"]
    named = server.predict(instances=[{"image_bytes": each} for each in encoded])["predictions"]
    assert found == named
    model = tf.saved_model.load(server.sandbox.registry.get_version(2).folder)
    wanted = model.signatures["serving_default"](image_bytes=tf.constant(server.encoded[:5]))
    assert [each["classes"] for each in found] == wanted["classes"].numpy().tolist()
    np.testing.assert_allclose(
        [each["probabilities"] for each in found], wanted["probabilities"].numpy(), atol=1e-6
    )


def test_most_answers_are_right(server):
    answers = server.predict(instances=[as_b64(image) for image in server.encoded])["predictions"]
    assert np.mean(np.array([each["classes"] for each in answers]) == server.labels) > 0.8


@pytest.mark.parametrize(
    "path, body, status, complaint",
    [
        ("/v1/models/digits:predict", b"{", 400, "JSON Parse error"),
        (
            "/v1/models/digits:predict",
            b'{"instances": [{"b64": "bm8gaW1hZ2U="}]}',
            400,
            "the model cannot process this: Unknown image file format.",
        ),
        (
            "/v1/models/digits:predict",
            json.dumps({"signature_name": "images", "instances": ["x"]}).encode(),
            400,
            "only rows of the signature serving_default are served here",
        ),
        (
            "/v1/models/other:predict",
            b"{}",
            404,
            "there is no /v1/models/other:predict, only /v1/models/digits:predict",
        ),
        ("/v1/models/digits/versions/2:predict", b"{}", 404, "only /v1/models/digits:predict"),
        ("/v1/models/digits:classify", b"{}", 404, "only /v1/models/digits:predict"),
        ("/v1/models/digits", b"{}", 404, "only /v1/models/digits:predict"),
        ("/../../etc/passwd", b"{}", 404, "only /v1/models/digits:predict"),
    ],
)
def test_a_bad_request_gets_its_status_and_the_reason(server, path, body, status, complaint):
    code, response = server.post(path, body)
    assert code == status and complaint in response["error"]


@pytest.mark.parametrize(
    "path, status",
    [
        ("/serve.py", 404),
        ("/v1/models/digits:predict", 405),
        ("/v1/models", 404),
        ("/v1/models/digits/metadata", 404),
        ("/page.css", None),
    ],
)
def test_nothing_but_its_own_paths_can_be_read(server, path, status):
    if status is None:
        with urllib.request.urlopen(server.address + path) as reply:
            assert reply.headers["Content-Type"].startswith("text/css")
    else:
        assert server.get(path)[0] == status


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server):
    import http.client

    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/v1/models/digits:predict")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    reply = connection.getresponse()
    assert reply.status == 413 and "bytes at most" in json.load(reply)["error"]


def test_it_listens_on_this_machine_alone(server):
    assert server.address.startswith("http://127.0.0.1:")


def test_an_image_of_too_many_pixels_gets_the_reason(server):
    """F13: a PNG of 16,384 x 16,384 pixels."""
    packer, header = zlib.compressobj(9), struct.pack(">IIBBBBB", 16_384, 16_384, 8, 0, 0, 0, 0)
    content = b"".join(packer.compress(bytes(16_385)) for _ in range(16_384)) + packer.flush()
    chunks = [
        len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)
        for kind, body in ((b"IHDR", header), (b"IDAT", content), (b"IEND", b""))
    ]
    bomb = as_b64(b"".join((b"\x89PNG\r\n\x1a\n", *chunks)))
    code, response = server.post(
        "/v1/models/digits:predict", json.dumps({"instances": [bomb] * 4}).encode()
    )
    assert code == 400 and response["error"] == (
        "the model cannot process this: "
        "An image has 268435456 pixels, at most 64000000 are allowed. Send a smaller one."
    )


def test_it_follows_the_alias_without_a_restart_and_answers_all_the_time(server):
    asked, stop = [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            asked.append(
                server.post(
                    "/v1/models/digits:predict",
                    json.dumps({"instances": [as_b64(server.encoded[0])]}).encode(),
                )[0]
            )

    asking = threading.Thread(target=ask)
    asking.start()
    server.sandbox.registry.roll_back()
    server.wait_for_version(1)
    server.sandbox.registry.promote(2, "back")
    server.wait_for_version(2)
    stop.set()
    asking.join()
    assert set(asked) == {200} and len(asked) > 2


def test_a_champion_that_can_not_be_loaded_leaves_the_old_one_in_service_and_the_reason_is_told(
    server,
):
    registry = server.sandbox.registry
    broken = registry.location / "9"
    shutil.copytree(registry.location / "2", broken)
    (broken / "saved_model.pb").write_bytes(b"no model")
    registry.promote(9, "broken")
    deadline = time.monotonic() + 120
    while not (response := server.get("/health")[1])["problem"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "9/saved_model.pb has 8 bytes, but" in response["problem"] and response["version"] == 2
    server.predict(instances=[as_b64(server.encoded[0])])
    registry.promote(2, "back")
    shutil.rmtree(broken)
