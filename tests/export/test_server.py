"""`trainyard serve`, as a process of its own, asked by curl, by TensorFlow Serving's own messages,
and by a browser."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import pytest
from workshop import Workshop, copy_dataset, read_examples

from pipeline_ops.artifacts.dataset import shard_paths
from pipeline_ops.artifacts.manifest import read_manifest

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
NAMES = [HOSTILE, *"123456789"]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Server:
    """The command, its address, and the images that it is asked about."""

    def __init__(self, process: subprocess.Popen, workshop: Workshop, dataset: str):
        self.process, self.workshop = process, workshop
        self.address = process.stdout.readline().strip().rstrip("/")
        records, images, labels = read_examples(
            shard_paths(dataset, read_manifest(dataset), "test")
        )
        self.records, self.labels = records, labels
        self.images = (255 * images).reshape(-1, 16, 16, 1)
        import tensorflow as tf

        self.encoded = [
            tf.train.Example.FromString(record)
            .features.feature["image/encoded"]
            .bytes_list.value[0]
            for record in records
        ]

    def get(self, path: str) -> tuple[int, dict]:
        return self._answer(urllib.request.Request(self.address + path))

    def post(self, path: str, body: bytes) -> tuple[int, dict]:
        return self._answer(urllib.request.Request(self.address + path, body))

    def predict(self, **body) -> dict:
        status, said = self.post("/v1/models/digits:predict", json.dumps(body).encode())
        assert status == 200, said
        return said

    @staticmethod
    def _answer(request) -> tuple[int, dict]:
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_for_version(self, number: int) -> None:
        deadline = time.monotonic() + 120
        while (said := self.get("/health")[1])["version"] != number:
            assert time.monotonic() < deadline and self.process.poll() is None, said
            time.sleep(0.05)


def as_b64(content: bytes) -> dict:
    return {"b64": base64.b64encode(content).decode()}


@pytest.fixture(scope="module")
def server(dataset, saved_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    workshop = Workshop(
        folder / "root", copy_dataset(dataset, folder / "data", NAMES), saved_models
    )
    for model in ("fair", "good"):
        workshop.publish(model)
    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "serve",
        "digits",
        "--registry",
        str(workshop.registry.place.parent),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        server = Server(process, workshop, workshop.dataset)
        server.wait_for_version(2)
        yield server
    finally:
        process.kill()
        process.wait()


def test_curl_gets_a_prediction(server, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"instances": [as_b64(server.encoded[0])]}))
    said = subprocess.run(
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
    [prediction] = json.loads(said.stdout)["predictions"]
    assert (
        prediction["classes"] == int(np.argmax(prediction["probabilities"]))
        and len(prediction["probabilities"]) == 10
    )


def test_all_forms_get_the_same_answer(server):
    encoded = [as_b64(image) for image in server.encoded[:5]]
    wanted = server.predict(instances=encoded)["predictions"]
    assert [each["classes"] for each in wanted] == [
        int(np.argmax(each["probabilities"])) for each in wanted
    ]
    assert (
        server.predict(instances=[{"image_bytes": each} for each in encoded])["predictions"]
        == wanted
    )
    columns = server.predict(inputs={"image_bytes": encoded})["outputs"]
    assert columns == {name: [each[name] for each in wanted] for name in wanted[0]}
    others = {
        "images": server.images[:5].tolist(),
        "examples": [as_b64(record) for record in server.records[:5]],
    }
    for signature, instances in others.items():
        found = server.predict(signature_name=signature, instances=instances)["predictions"]
        np.testing.assert_allclose(
            [each["probabilities"] for each in found],
            [each["probabilities"] for each in wanted],
            atol=1e-5,
        )


def test_most_answers_are_right(server):
    said = server.predict(inputs=[as_b64(image) for image in server.encoded])["outputs"]["classes"]
    assert np.mean(np.array(said) == server.labels) > 0.8


@pytest.mark.parametrize("path", ["", "/versions/2", "/labels/champion"])
def test_state_and_metadata_are_the_messages_of_tensorflow_serving(server, path):
    status_pb2 = pytest.importorskip(
        "tensorflow_serving.apis.get_model_status_pb2",
        reason="tensorflow-serving-api is not installed",
    )
    from google.protobuf import json_format
    from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2

    code, said = server.get(f"/v1/models/digits{path}")
    [state] = json_format.ParseDict(said, status_pb2.GetModelStatusResponse()).model_version_status
    assert (
        code == 200
        and state.version == 2
        and state.state == status_pb2.ModelVersionStatus.AVAILABLE
        and state.status.error_code == 0
    )
    code, said = server.get(f"/v1/models/digits{path}/metadata")
    signatures = json_format.ParseDict(
        said["metadata"]["signature_def"], get_model_metadata_pb2.SignatureDefMap()
    ).signature_def
    assert json_format.ParseDict(said["model_spec"], model_pb2.ModelSpec()).version.value == 2
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
        Path(server.workshop.registry.version(2).folder)
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
        said = server.predict(signature_name=request.model_spec.signature_name, inputs=columns)[
            "outputs"
        ]
        assert len(said["classes"]) == len(next(iter(inputs.values())))


@pytest.mark.parametrize(
    "path, body, status, complaint",
    [
        ("/v1/models/digits:predict", b"{", 400, "JSON Parse error"),
        (
            "/v1/models/digits:predict",
            b'{"instances": [{"b64": "bm8gaW1hZ2U="}]}',
            400,
            "the model can't take this: Unknown image file format.",
        ),
        (
            "/v1/models/digits:predict",
            json.dumps({"signature_name": "no", "instances": ["x"]}).encode(),
            400,
            "there is no signature 'no'",
        ),
        ("/v1/models/other:predict", b"{}", 404, "there is no model other here; there is digits"),
        (
            "/v1/models/digits/versions/7:predict",
            b"{}",
            404,
            "version 7 is not loaded; version 2 is",
        ),
        (
            "/v1/models/digits/labels/canary:predict",
            b"{}",
            404,
            "the label canary is not served; champion is",
        ),
        ("/v1/models/digits:classify", b"{}", 501, "only :predict is served"),
        ("/v1/models/digits", b"{}", 501, "only :predict is served"),
        ("/../../etc/passwd", b"{}", 404, "Malformed request"),
    ],
)
def test_a_bad_request_gets_its_status_and_the_reason(server, path, body, status, complaint):
    code, said = server.post(path, body)
    assert code == status and complaint in said["error"]


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
    code, said = server.post(
        "/v1/models/digits:predict", json.dumps({"instances": [bomb] * 4}).encode()
    )
    assert code == 400 and said["error"] == (
        "the model can't take this: "
        "An image has 268435456 pixels, at most 64000000 are allowed. Send a smaller one."
    )


def test_it_needs_no_airflow():
    code = (
        "import sys, pipeline_ops.cli.main, pipeline_ops.export.serving.server; "
        "sys.exit('airflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_address_is_listened_on_with_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "serve",
        "digits",
        "--registry",
        str(tmp_path),
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--allow-host",
        "models.example.org",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        port = process.stdout.readline().strip().rstrip("/").rpartition(":")[2]
        assert "the server has no login and no TLS" in process.stderr.readline()
        for name, code in (("models.example.org", 503), ("attacker.example", 421)):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/health", headers={"Host": name}
            )
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            assert caught.value.code == code
            caught.value.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and "Traceback" not in process.stderr.read()


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
    server.workshop.registry.roll_back()
    server.wait_for_version(1)
    server.workshop.registry.promote(2, "back")
    server.wait_for_version(2)
    stop.set()
    asking.join()
    assert set(asked) == {200} and len(asked) > 2


def test_a_champion_that_can_not_be_loaded_leaves_the_old_one_in_service_and_the_reason_is_told(
    server,
):
    registry = server.workshop.registry
    broken = registry.place / "9"
    shutil.copytree(registry.place / "2", broken)
    (broken / "saved_model.pb").write_bytes(b"no model")
    registry.promote(9, "broken")
    deadline = time.monotonic() + 120
    while not (said := server.get("/health")[1])["problem"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (
        "9/saved_model.pb has 8 bytes, the manifest says" in said["problem"]
        and said["version"] == 2
    )
    server.predict(instances=[as_b64(server.encoded[0])])
    registry.promote(2, "back")
    shutil.rmtree(broken)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width, scheme", [(1200, "light"), (390, "dark")])
def test_a_picture_that_is_dropped_gets_its_classes_drawn_and_no_name_of_a_class_is_a_script(
    server, tmp_path, width, scheme
):
    """Pictures of the page go to the folder that TRAINYARD_SCREENSHOTS names."""
    from playwright.sync_api import sync_playwright

    picture = tmp_path / "digit.png"
    picture.write_bytes(server.encoded[int(np.flatnonzero(server.labels == 0)[0])])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"]
        )
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(120_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: problems.append(message.text) if message.type == "error" else None,
        )
        page.goto(server.address)
        page.get_by_text("version 2, @champion").wait_for()
        page.set_input_files("#file", str(picture))
        page.locator("#bars li").first.wait_for()
        assert (
            page.locator("#headline").inner_text() == HOSTILE
            and page.locator("#bars li").count() == 10
        )
        assert page.title() == "Trainyard: try a model" and problems == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if folder := os.environ.get("TRAINYARD_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"serve-{width}-{scheme}.png", full_page=True)
        (tmp_path / "bad.png").write_bytes(b"no picture")
        page.set_input_files("#file", str(tmp_path / "bad.png"))
        page.get_by_text("the model can't take this").wait_for()
        assert not page.locator("#result").is_visible()
        if folder:
            page.screenshot(path=Path(folder) / f"serve-{width}-{scheme}-bad.png", full_page=True)
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_boxes_are_drawn_over_the_picture_where_a_model_answers_with_boxes(server, tmp_path):
    """What a detector answers is given to the page by the test; a real one is asked in
    `evaluation/test_detector.py`."""
    from playwright.sync_api import sync_playwright

    detections = {
        "boxes": [[0.1, 0.2, 0.5, 0.6], [0.4, 0.5, 0.9, 1.0], [0.0, 0.0, 0.1, 0.1]],
        "scores": [0.9, 0.8, 0.1],
        "classes": [3, 0, 5],
        "num_detections": 3,
    }
    (tmp_path / "digit.png").write_bytes(server.encoded[0])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"]
        )
        page = browser.new_page(viewport={"width": 800, "height": 700})
        page.set_default_timeout(120_000)
        page.route("**/*:predict", lambda route: route.fulfill(json={"predictions": [detections]}))
        page.goto(server.address)
        page.get_by_text("version 2, @champion").wait_for()
        page.set_input_files("#file", str(tmp_path / "digit.png"))
        page.get_by_text("2 objects").wait_for()
        drawn = page.locator("#boxes rect").first.bounding_box()
        picture = page.locator("#picture").bounding_box()
        assert page.locator("#boxes rect").count() == 2 and page.locator("#bars li").count() == 2
        assert page.locator("#names .tag").all_inner_texts() == [
            "3",
            HOSTILE,
        ]  # class 0 has the hostile name
        assert drawn["x"] - picture["x"] == pytest.approx(0.2 * picture["width"], abs=2)
        assert drawn["height"] == pytest.approx(0.4 * picture["height"], abs=3)
        if folder := os.environ.get("TRAINYARD_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "serve-boxes.png", full_page=True)
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_picture_that_is_dropped_before_there_is_a_model_gets_the_reason(tmp_path):
    """It was "Cannot read properties of null"."""
    from playwright.sync_api import sync_playwright

    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "serve",
        "digits",
        "--registry",
        str(tmp_path),
        "--port",
        "0",
    ]
    (tmp_path / "digit.png").write_bytes(b"no picture yet")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"]
        )
        page = browser.new_page(viewport={"width": 800, "height": 700})
        page.set_default_timeout(120_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(process.stdout.readline().strip())
        page.get_by_text("no model is loaded yet").first.wait_for()
        page.set_input_files("#file", str(tmp_path / "digit.png"))
        page.get_by_text("There is no model to ask yet").wait_for()
        assert problems == [] and not page.locator("#result").is_visible()
        if folder := os.environ.get("TRAINYARD_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "serve-early.png", full_page=True)
        browser.close()
        process.terminate()


def test_before_anything_is_published_it_says_that_and_waits(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "serve",
        "digits@canary",
        "--registry",
        str(tmp_path),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        address = process.stdout.readline().strip()
        deadline = time.monotonic() + 120
        while "no version has the alias canary" not in (said := _health(address))[1]["problem"]:
            assert time.monotonic() < deadline, said
        assert said[0] == 503 and said[1]["status"] == "loading"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


def _health(address: str) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"{address}health") as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_port_in_use_is_told(server, tmp_path):
    port = server.address.rpartition(":")[2]
    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "serve",
        "digits",
        "--registry",
        str(tmp_path),
        "--port",
        port,
    ]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (
        ended.returncode == 1
        and f"can't listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    )


def test_a_name_needs_a_registry():
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline_ops.cli.main", "serve", "digits"],
        capture_output=True,
        text=True,
    )
    assert (
        ended.returncode == 78
        and "name the registry that has this model with --registry" in ended.stderr
    )
