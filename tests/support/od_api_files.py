"""A pipeline.config like those of the Object Detection API's model zoo, with label map and records
from TensorFlow's own writer."""

from __future__ import annotations

from pathlib import Path

import pytest

SSD = """
# SSD with ResNet-50 and a feature pyramid, as the zoo writes it.
model {
  ssd {
    num_classes: 10
    image_resizer { fixed_shape_resizer { height: 128 width: 128 } }
    feature_extractor {
      type: "ssd_mobilenet_v2_fpn_keras"
      depth_multiplier: 0.35
      min_depth: 16
      conv_hyperparams {
        regularizer { l2_regularizer { weight: 4e-05 } }
        initializer { truncated_normal_initializer { mean: 0.0 stddev: 0.03 } }
        activation: RELU_6
        batch_norm { decay: 0.997 scale: true epsilon: 0.001 }
      }
      override_base_feature_extractor_hyperparams: true
      fpn < min_level: 3, max_level: 7; additional_layer_depth: 16 >
    }
    box_coder {
      faster_rcnn_box_coder { y_scale: 10.0 x_scale: 10.0 height_scale: 5.0 width_scale: 5.0 }
    }
    matcher {
      argmax_matcher {
        matched_threshold: 0.5 unmatched_threshold: 0.5
        ignore_thresholds: false force_match_for_each_row: true
      }
    }
    similarity_calculator { iou_similarity { } }
    box_predictor {
      weight_shared_convolutional_box_predictor {
        depth: 16
        num_layers_before_predictor: 1
        kernel_size: 3
        class_prediction_bias_init: -4.6
      }
    }
    anchor_generator {
      multiscale_anchor_generator {
        min_level: 3 max_level: 7
        anchor_scale: 2.0
        aspect_ratios: [1.0, 2.0, 0.5]
        scales_per_octave: 2
      }
    }
    post_processing {
      batch_non_max_suppression {
        score_threshold: 1e-08 iou_threshold: 0.6
        max_detections_per_class: 100 max_total_detections: 100
      }
      score_converter: SIGMOID
    }
    normalize_loss_by_num_matches: true
    loss {
      localization_loss { weighted_smooth_l1 { } }
      classification_loss { weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 } }
      classification_weight: 1.0
      localization_weight: 1.0
    }
    encode_background_as_zeros: true
    freeze_batchnorm: true
  }
}
train_config {
  batch_size: 8
  data_augmentation_options { random_horizontal_flip { } }
  data_augmentation_options { random_crop_image { min_object_covered: 0.0 min_aspect_ratio: 0.75 } }
  sync_replicas: true
  gradient_clipping_by_norm: 10.0
  optimizer {
    momentum_optimizer {
      learning_rate {
        cosine_decay_learning_rate {
          learning_rate_base: 0.01 total_steps: 30 warmup_learning_rate: 0.001 warmup_steps: 10
        }
      }
      momentum_optimizer_value: 0.9
    }
    use_moving_average: false
  }
  fine_tune_checkpoint: "resnet50" '.ckpt-1'
  num_steps: 8
  fine_tune_checkpoint_type: "classification"
  use_bfloat16: true
}
train_input_reader {
  label_map_path: "LABELS"
  tf_record_input_reader { input_path: "TRAIN" }
}
eval_config { metrics_set: "coco_detection_metrics" use_moving_averages: false }
eval_input_reader {
  label_map_path: "LABELS"
  shuffle: false
  tf_record_input_reader { input_path: ["EVAL"] }
}
"""

CENTER_NET = """
model {
  center_net {
    num_classes: 10
    image_resizer { fixed_shape_resizer { height: 128 width: 128 } }
    feature_extractor { type: "mobilenet_v2_fpn" }
  }
}
train_config {
  batch_size: 16
  num_steps: 195
  data_augmentation_options { random_adjust_brightness { max_delta: 0.1 } }
  optimizer {
    adam_optimizer {
      learning_rate {
        cosine_decay_learning_rate {
          learning_rate_base: 8e-3 total_steps: 195 warmup_learning_rate: 0.0 warmup_steps: 15
        }
      }
    }
    use_moving_average: false
  }
  gradient_clipping_by_norm: 10.0
}
train_input_reader {
  label_map_path: "LABELS"
  tf_record_input_reader { input_path: "TRAIN" }
}
eval_config { metrics_set: "coco_detection_metrics" use_moving_averages: false }
eval_input_reader { label_map_path: "LABELS" tf_record_input_reader { input_path: "EVAL" } }
"""


@pytest.fixture
def api_folder(tmp_path) -> Path:
    """A folder `api` with `train.record-0000?-of-00002`, `eval.record`, `labels.pbtxt` and
    `pipeline.config`."""
    folder = tmp_path / "api"
    folder.mkdir()
    for name, split, numbers in (
        ("train.record-00000-of-00002", "train", range(0, 18)),
        ("train.record-00001-of-00002", "train", range(18, 36)),
        ("eval.record", "test", range(6)),
    ):
        write_records(folder / name, split, numbers)
    (folder / "labels.pbtxt").write_text(
        "".join(f"item {{ id: {digit + 1} name: 'digit_{digit}' }}\n" for digit in range(10))
    )
    (folder / "pipeline.config").write_text(with_paths(SSD, folder))
    return folder


def with_paths(text: str, folder: Path, train: str = "train.record-?????-of-00002") -> str:
    return (
        text.replace("LABELS", str(folder / "labels.pbtxt"))
        .replace("TRAIN", str(folder / train))
        .replace("EVAL", str(folder / "eval.record"))
    )


def write_records(path: Path, split: str, numbers) -> None:
    """Writes records in the format of the API's create_coco_tf_record.py."""
    import cv2
    import tensorflow as tf
    from scenes import scene_example

    def bytes_list(*values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    def floats(values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    def integers(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            example = scene_example(split, number)
            jpeg = cv2.imencode(".jpg", example.image)[1].tobytes()
            boxes = example.boxes
            feature = {
                "image/height": integers(128),
                "image/width": integers(128),
                "image/filename": bytes_list(f"{split}_{number}.jpg".encode()),
                "image/source_id": bytes_list(str(number).encode()),
                "image/encoded": bytes_list(jpeg),
                "image/format": bytes_list(b"jpeg"),
                "image/object/bbox/xmin": floats([box.xmin / 128 for box in boxes]),
                "image/object/bbox/xmax": floats([b.xmax / 128 for b in boxes]),
                "image/object/bbox/ymin": floats([box.ymin / 128 for box in boxes]),
                "image/object/bbox/ymax": floats([b.ymax / 128 for b in boxes]),
                "image/object/class/text": bytes_list(
                    *(f"digit_{box.label}".encode() for box in boxes)
                ),
                "image/object/class/label": integers(*(int(box.label) + 1 for box in boxes)),
                "image/object/is_crowd": integers(*(0 for _ in boxes)),
            }
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
            )
