"""The head of RetinaNet: losses for boxes, and boxes for outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

SIZE, CLASSES = (64, 96), 3
PIXELS = np.array([64, 96, 64, 96])
BOXES = [[8, 10, 30, 40], [20, 50, 60, 90], [33, 3, 47, 12]]


def head(**options):
    from pipeline_ops.models.retinanet import make_head

    return make_head((*SIZE, 3), CLASSES, anchor_scale=2.0, **options)


def labels(boxes, classes, crowd=None):
    import tensorflow as tf

    from pipeline_ops.models.boxes import Boxes

    corners = np.array(boxes, np.float32).reshape(1, -1, 4) / PIXELS
    return Boxes(
        tf.constant(corners, tf.float32),
        tf.constant([classes], tf.int32, [1, len(classes)]),
        tf.constant([crowd or [False] * len(classes)], tf.bool, [1, len(classes)]),
    )


def perfect_outputs(truth):
    """Returns the outputs of a perfect network."""
    import tensorflow as tf

    from pipeline_ops.models.anchor_head import encode_boxes

    targets = head().build_targets(truth)
    logits = tf.where(tf.one_hot(targets.classes, CLASSES) > 0, 12.0, -12.0)
    return {
        "logits": logits,
        "deltas": tf.where(
            targets.is_object[..., None], encode_boxes(targets.corners, head().anchors), 0.0
        ),
    }


@pytest.mark.parametrize("box_loss", ["smooth_l1", "giou"])
def test_perfect_outputs_cost_nearly_nothing_and_wrong_ones_much(box_loss):
    truth = labels(BOXES, [0, 2, 1])
    loss, class_loss, iou, count = (
        head(box_loss=box_loss).compute_sums(perfect_outputs(truth), truth).numpy()
    )
    assert count >= 3
    assert iou == pytest.approx(count, rel=1e-4)
    assert loss < 0.01 and class_loss < 0.01
    other = labels([[y + 4, x + 4, y2 + 4, x2 + 4] for y, x, y2, x2 in BOXES], [0, 2, 1])
    wrong = head(box_loss=box_loss).compute_sums(perfect_outputs(other), truth).numpy()
    assert wrong[0] > 10 and wrong[2] < count


def test_perfect_outputs_mean_the_boxes_that_they_were_made_of():
    found = head().detect(perfect_outputs(labels(BOXES, [0, 2, 1])))
    count = int(found.num_detections[0])
    assert count == 3
    answers = {
        int(c): box
        for c, box in zip(
            found.classes[0].numpy()[:count], found.boxes[0].numpy()[:count] * PIXELS, strict=True
        )
    }
    for box, label in zip(BOXES, [0, 2, 1], strict=True):
        assert answers[label] == pytest.approx(box, abs=1e-2)


def test_other_formats_find_the_same():
    import tensorflow as tf

    random = np.random.default_rng(2)
    anchors = len(head().anchors)
    outputs = {
        "logits": tf.constant(random.normal(-2, 2, (2, anchors, CLASSES)), tf.float32),
        "deltas": tf.constant(random.normal(0, 0.2, (2, anchors, 4)), tf.float32),
    }
    wanted, found = head().detect(outputs), tf.function(lambda: head().detect_portably(outputs))()
    assert wanted.num_detections.numpy().min() > 50
    for name in wanted._fields:
        assert getattr(found, name).numpy() == pytest.approx(
            getattr(wanted, name).numpy(), abs=1e-6
        ), name


@pytest.mark.parametrize(
    ("box_loss", "box_wanted"),
    [("smooth_l1", 2 * (0.05**2 / 0.22) + 2 * (0.3 - 0.055)), ("giou", None)],
)
def test_the_losses_by_hand(box_loss, box_wanted):
    """Every anchor predicts 0.1 for class 0 and 0 for the other classes.

    All boxes are wrong by (0.05, -0.05, 0.3, -0.3).
    """
    import tensorflow as tf

    truth = labels(BOXES[:1], [0])
    targets = head().build_targets(truth)
    is_object, is_ignored = (each.numpy()[0] for each in (targets.is_object, targets.is_ignored))
    objects, background = is_object.sum(), (~is_object & ~is_ignored).sum()
    perfect = perfect_outputs(truth)
    outputs = {
        "logits": tf.concat(
            [
                tf.fill([1, len(is_object), 1], math.log(0.1 / 0.9)),
                tf.fill([1, len(is_object), 2], -40.0),
            ],
            -1,
        ),
        "deltas": perfect["deltas"] + tf.constant([0.05, -0.05, 0.3, -0.3]),
    }
    loss, class_loss, iou, count = head(box_loss=box_loss).compute_sums(outputs, truth).numpy()
    assert count == objects
    by_hand = objects * 0.25 * 0.9**2 * -math.log(0.1) + background * 0.75 * 0.1**2 * -math.log(0.9)
    assert class_loss == pytest.approx(by_hand, rel=1e-4)
    ious, gious = zip(
        *[
            plain_overlaps(anchor, BOXES[0], (0.05, -0.05, 0.3, -0.3))
            for anchor in head().anchors[is_object]
        ],
        strict=True,
    )
    assert iou == pytest.approx(sum(ious), rel=1e-3)
    box_loss = objects * box_wanted if box_wanted else sum(1 - giou for giou in gious)
    assert loss - class_loss == pytest.approx(box_loss, rel=1e-3)


def plain_overlaps(anchor, box, errors):
    """Returns IoU and GIoU of a box and its decoded copy with an error in the distances."""
    height, width = anchor[2] - anchor[0], anchor[3] - anchor[1]
    y, x = (box[0] + box[2]) / 2 + errors[0] * height, (box[1] + box[3]) / 2 + errors[1] * width
    high, wide = (box[2] - box[0]) * math.exp(errors[2]), (box[3] - box[1]) * math.exp(errors[3])
    other = (y - high / 2, x - wide / 2, y + high / 2, x + wide / 2)
    inter = max(0, min(box[2], other[2]) - max(box[0], other[0])) * max(
        0, min(box[3], other[3]) - max(box[1], other[1])
    )
    union = (box[2] - box[0]) * (box[3] - box[1]) + high * wide - inter
    hull = (max(box[2], other[2]) - min(box[0], other[0])) * (
        max(box[3], other[3]) - min(box[1], other[1])
    )
    return inter / union, inter / union - (hull - union) / hull


API = {
    "box_scales": [10.0, 10.0, 5.0, 5.0],
    "box_loss_delta": 1.0,
    "scales_per_octave": 2,
    "unmatched_iou": 0.5,
}
"""What the configs of the Object Detection API have nearly always."""


@pytest.mark.parametrize(
    ("alpha", "gamma", "delta", "weights"),
    [
        (0.25, 2.0, 1.0, (1.0, 1.0)),
        (None, 2.0, 1.0, (1.0, 1.0)),
        (0.25, 1.5, 0.3, (0.7, 2.5)),
        (0.75, 0.0, 3.0, (1.0, 0.25)),
    ],
)
def test_loss_and_gradient_are_those_of_the_object_detection_api(alpha, gamma, delta, weights):
    """Its sigmoid focal loss (without alpha: unweighted), and its Huber loss of the errors that the
    box coder has multiplied, both divided by the number of matched anchors."""
    import tensorflow as tf

    random = np.random.default_rng(8)
    low = random.uniform(0, 0.6, (4, 2)) * SIZE
    boxes = np.concatenate([low, low + random.uniform(8, 30, (4, 2))], -1).astype(np.float32)
    truth = labels(boxes, [0, 2, 1, 2])
    # The API's Huber loss is delta times a smooth L1.
    options = API | {"box_loss_delta": delta, "focal_alpha": alpha, "focal_gamma": gamma}
    ours = head(**options, class_loss_weight=weights[0], box_loss_weight=weights[1] * delta)
    targets = ours.build_targets(truth)
    is_object = targets.is_object.numpy()[0]
    anchors = ours.anchors.astype(np.float64)[is_object]
    corners = targets.corners.numpy().astype(np.float64)[0][is_object]
    sizes, matched_sizes = anchors[:, 2:] - anchors[:, :2], corners[:, 2:] - corners[:, :2]
    shifts = (corners[:, 2:] + corners[:, :2] - anchors[:, 2:] - anchors[:, :2]) / 2 / sizes
    wanted = np.concatenate([shifts * 10, np.log(matched_sizes / sizes) * 5], -1)
    one_hot = np.eye(CLASSES + 1)[targets.classes.numpy()][..., :CLASSES]
    count = len(ours.anchors)
    logits = tf.Variable(random.normal(-1, 2, (1, count, CLASSES)).astype(np.float32))
    deltas = tf.Variable(random.normal(0, 2, (1, count, 4)).astype(np.float32))
    with tf.GradientTape(persistent=True) as tape:
        sums = ours.compute_sums({"logits": logits, "deltas": deltas}, truth)
        loss = sums[0] / sums[-1]
        entropies = tf.nn.sigmoid_cross_entropy_with_logits(one_hot, tf.cast(logits, tf.float64))
        chances = tf.sigmoid(tf.cast(logits, tf.float64))
        chances = one_hot * chances + (1 - one_hot) * (1 - chances)
        focal = entropies * (1 - chances) ** gamma if gamma else entropies
        if alpha is not None:
            focal *= one_hot * alpha + (1 - one_hot) * (1 - alpha)
        errors = tf.abs(tf.cast(deltas, tf.float64)[0][is_object] - wanted)
        huber = tf.where(errors <= delta, errors**2 / 2, delta * errors - delta**2 / 2)
        theirs = weights[0] * tf.reduce_sum(focal) + weights[1] * tf.reduce_sum(huber)
        theirs /= is_object.sum()
    assert float(loss) == pytest.approx(float(theirs), rel=1e-6)
    for variable in (logits, deltas):
        found, other = tape.gradient(loss, variable), tape.gradient(theirs, variable)
        assert np.abs(found - other).max() < 1e-6 < np.abs(other).max()
    # Outputs of a perfect network are the true boxes, also where the coder multiplies.
    logits = tf.where(tf.one_hot(targets.classes, CLASSES) > 0, 12.0, -12.0)
    found = ours.detect({"logits": logits, "deltas": expand(wanted, is_object)})
    assert {tuple(np.round(box, 1)) for box in found.boxes[0].numpy()[:4] * PIXELS} <= {
        tuple(np.round(np.clip(box, 0, PIXELS), 1)) for box in boxes
    }


def expand(rows, mask):
    """Returns float32 [1, A, 4] with the rows at the places of the mask."""
    values = np.zeros((1, len(mask), 4), np.float32)
    values[0, mask] = rows
    return values


def test_the_overlap_of_detections_that_are_one_is_a_parameter():
    truth = labels([[8, 8, 40, 40], [8, 18, 40, 50]], [0, 0])  # IoU 0.52
    outputs = perfect_outputs(truth)
    for portable in (False, True):
        counts = [
            int((found.detect_portably if portable else found.detect)(outputs).num_detections[0])
            for found in (head(nms_iou=0.5), head(nms_iou=0.6))
        ]
        assert counts == [1, 2]


@pytest.mark.parametrize(
    ("boxes", "classes"), [([], []), ([[0, 0, 0, 0]], [-1])], ids=["no box", "padding"]
)
def test_an_image_without_boxes_is_learned_from_too(boxes, classes):
    truth = labels(boxes, classes)
    imagined = perfect_outputs(labels(BOXES, [0, 2, 1]))
    loss, class_loss, iou, count = head().compute_sums(imagined, truth).numpy()
    assert (iou, count) == (0, 0)
    assert loss == class_loss > 10


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_sums_of_parts_of_a_batch_add_up_to_those_of_the_whole(parts):
    """The number of workers does not change the sums, although each worker pads differently."""
    import tensorflow as tf

    from pipeline_ops.models.boxes import Boxes

    random = np.random.default_rng(3)
    anchors, counts = len(head().anchors), [0, 1, 5, 2, 3, 0, 1, 4]
    low = random.uniform(0, 0.5, (8, 5, 2))
    corners, classes = (
        np.concatenate([low, low + random.uniform(0.1, 0.5, (8, 5, 2))], -1),
        random.integers(0, CLASSES, (8, 5)),
    )
    crowd = random.random((8, 5)) < 0.2
    outputs = {
        "logits": random.normal(-2, 2, (8, anchors, CLASSES)),
        "deltas": random.normal(0, 0.5, (8, anchors, 4)),
    }

    def sums(images):
        most = max(counts[image] for image in images)
        room = np.array(
            [[number < counts[image] for number in range(most)] for image in images], bool
        ).reshape(len(images), most)
        truth = Boxes(
            tf.constant(corners[images][:, :most] * room[..., None], tf.float32),
            tf.constant(np.where(room, classes[images][:, :most], -1), tf.int32),
            tf.constant(crowd[images][:, :most] & room),
        )
        return (
            head()
            .compute_sums(
                {name: tf.constant(values[images], tf.float32) for name, values in outputs.items()},
                truth,
            )
            .numpy()
        )

    whole = sums(np.arange(8))
    assert whole[3] > 20
    assert sum(map(sums, np.split(np.arange(8), parts))) == pytest.approx(whole, rel=1e-5)


def test_padding_is_no_box():
    padded, outputs = (
        labels([*BOXES, [0, 0, 0, 0]], [0, 2, 1, -1]),
        perfect_outputs(labels(BOXES, [0, 2, 1])),
    )
    assert head().compute_sums(outputs, padded).numpy() == pytest.approx(
        head().compute_sums(outputs, labels(BOXES, [0, 2, 1])).numpy()
    )


def test_what_is_found_in_a_crowd_costs_nothing():
    """Anchors that reach far out of the image are excepted."""
    imagined = perfect_outputs(labels(BOXES[:2], [0, 2]))
    crowd = (
        head()
        .compute_sums(imagined, labels([BOXES[0], [5, 42, 64, 96]], [0, 2], [False, True]))
        .numpy()
    )
    alone = head().compute_sums(imagined, labels(BOXES[:1], [0])).numpy()
    assert crowd[3] == alone[3]
    assert crowd[1] < alone[1] / 5


def test_xla_compiles_the_losses_where_the_number_of_boxes_is_fixed():
    import tensorflow as tf

    truth = labels(BOXES, [0, 2, 1])
    outputs = perfect_outputs(truth)
    compiled = tf.function(head(max_boxes=3).compute_sums, jit_compile=True)
    assert compiled(outputs, truth).numpy() == pytest.approx(
        head().compute_sums(outputs, truth).numpy(), rel=1e-4, abs=1e-4
    )


def test_labels_have_as_much_room_as_the_head_says_and_an_image_with_more_is_an_error(scenes):
    import tensorflow as tf

    from pipeline_ops.contract.dataset import list_shard_paths
    from pipeline_ops.contract.manifest import read_manifest
    from pipeline_ops.models.detection import Detection
    from pipeline_ops.models.retinanet import make_head

    records = next(
        iter(
            tf.data.TFRecordDataset(
                list_shard_paths(scenes, read_manifest(scenes), "train")[:1]
            ).batch(8)
        )
    )
    shapes = {
        boxes: Detection((128, 128, 1), make_head((128, 128, 1), 10, max_boxes=boxes))
        .parse(records)[1]
        .corners.shape
        for boxes in (9, 20)
    }
    assert shapes == {9: (8, 9, 4), 20: (8, 20, 4)}
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="train.model_parameters.max_boxes is 1, and an image has more boxes",
    ):
        Detection((128, 128, 1), make_head((128, 128, 1), 10, max_boxes=1)).parse(records)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"anchor_scale": 0.0}, "anchor_scale must be above 0, got 0.0"),
        ({"box_loss": "l2"}, "box_loss must be smooth_l1 or giou, got l2"),
        ({"max_boxes": 0}, "max_boxes must be at least 1, got 0"),
        ({"box_scales": [10, 10, 5]}, "box_scales must be four numbers above 0, got"),
        ({"unmatched_iou": 0.6}, "unmatched_iou must be from 0 to matched_iou, got 0.6"),
        ({"aspect_ratios": []}, r"aspect_ratios must be numbers above 0, got \[\]"),
        ({"focal_alpha": 25}, "focal_alpha must be from 0 to 1, or null, got 25"),
    ],
)
def test_what_a_head_can_not_be_is_refused(options, problem):
    from pipeline_ops.errors import ConfigError
    from pipeline_ops.models.retinanet import make_head

    with pytest.raises(ConfigError, match=problem):
        make_head((64, 64, 3), 2, **options)


def test_an_image_with_more_boxes_ends_the_training_before_it_begins(scenes):
    from types import SimpleNamespace

    from pipeline_ops.config.train import Train
    from pipeline_ops.contract.manifest import Input, read_manifest
    from pipeline_ops.errors import ConfigError
    from pipeline_ops.launch.train import check_dataset

    most_boxes = read_manifest(scenes).figures["most_boxes"]
    request = SimpleNamespace(inputs={"preprocess": Input(uri=str(scenes), digest="")})
    config = Train(
        model="retinanet", global_batch_size=8, model_parameters={"max_boxes": most_boxes - 1}
    )
    message = f"an image has {most_boxes} boxes. Set it to that or more, or to null"
    with pytest.raises(ConfigError, match=message):
        check_dataset(SimpleNamespace(request=request), config)
