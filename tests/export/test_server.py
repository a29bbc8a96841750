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
from pathlib import Path

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


def test_all_forms_get_the_same_answer(server):
    encoded = [as_b64(image) for image in server.encoded[:5]]
    expected = server.predict(instances=encoded)["predictions"]
    assert [each["classes"] for each in expected] == [
        int(np.argmax(each["probabilities"])) for each in expected
    ]
    assert (
        server.predict(instances=[{"image_bytes": each} for each in encoded])["predictions"]
        == expected
    )
    columns = server.predict(inputs={"image_bytes": encoded})["outputs"]
    assert columns == {name: [each[name] for each in expected] for name in expected[0]}
    others = {
        "images": server.images[:5].tolist(),
        "examples": [as_b64(record) for record in server.records[:5]],
    }
    for signature, instances in others.items():
        found = server.predict(signature_name=signature, instances=instances)["predictions"]
        np.testing.assert_allclose(
            [each["probabilities"] for each in found],
            [each["probabilities"] for each in expected],
            atol=1e-5,
        )


def test_most_answers_are_right(server):
    response = server.predict(inputs=[as_b64(image) for image in server.encoded])["outputs"][
        "classes"
    ]
    assert np.mean(np.array(response) == server.labels) > 0.8


@pytest.mark.parametrize("path", ["", "/versions/2", "/labels/champion"])
def test_state_and_metadata_are_the_messages_of_tensorflow_serving(server, path):
    status_pb2 = pytest.importorskip(
        "tensorflow_serving.apis.get_model_status_pb2",
        reason="tensorflow-serving-api is not installed",
    )
    from google.protobuf import json_format
    from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2

    code, response = server.get(f"/v1/models/digits{path}")
    [state] = json_format.ParseDict(
        response, status_pb2.GetModelStatusResponse()
    ).model_version_status
    assert (
        code == 200
        and state.version == 2
        and state.state == status_pb2.ModelVersionStatus.AVAILABLE
        and state.status.error_code == 0
    )
    code, response = server.get(f"/v1/models/digits{path}/metadata")
    signatures = json_format.ParseDict(
        response["metadata"]["signature_def"], get_model_metadata_pb2.SignatureDefMap()
    ).signature_def
    assert json_format.ParseDict(response["model_spec"], model_pb2.ModelSpec()).version.value == 2
    assert {"serving_default", "images", "examples"} <= set(signatures)
    assert signatures["serving_default"].inputs["image_bytes"].dtype == 7  # DT_STRING
    assert signatures["serving_default"].method_name == "tensorflow/serving/predict"


def test_requests_as_tensorflow_serving_logs_them_can_be_asked_over_rest(server):
    """The warm-up requests of the version, read with its own messages."""
    log_pb2 = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2",
        reason="tensorflow-serving-api is not installed",
    )
    import tensorflow as tf

    file = (
        Path(server.sandbox.registry.get_version(2).folder)
        / "assets.extra"
        / "tf_serving_warmup_requests"
    )
    for record in tf.data.TFRecordDataset([str(file)]).as_numpy_iterator():
        request = log_pb2.PredictionLog.FromString(record).predict_log.request
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        columns = {
            name: [as_b64(item) for item in array] if array.dtype == object else array.tolist()
            for name, array in inputs.items()
        }
        response = server.predict(signature_name=request.model_spec.signature_name, inputs=columns)[
            "outputs"
        ]
        assert len(response["classes"]) == len(next(iter(inputs.values())))


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
            json.dumps({"signature_name": "no", "instances": ["x"]}).encode(),
            400,
            "there is no signature 'no'",
        ),
        (
            "/v1/models/other:predict",
            b"{}",
            404,
            "there is no model other on this server, only digits",
        ),
        (
            "/v1/models/digits/versions/7:predict",
            b"{}",
            404,
            "version 7 is not loaded, only version 2",
        ),
        (
            "/v1/models/digits/labels/canary:predict",
            b"{}",
            404,
            "the label canary is not served, only champion",
        ),
        ("/v1/models/digits:classify", b"{}", 501, "only :predict is served"),
        ("/v1/models/digits", b"{}", 501, "only :predict is served"),
        ("/../../etc/passwd", b"{}", 404, "Malformed request"),
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
