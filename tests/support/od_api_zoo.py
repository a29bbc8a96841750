"""Configs of the kinds that the model zoo of the Object Detection API has, in small."""

from __future__ import annotations

_CONVOLUTIONS = """
      conv_hyperparams {
        activation: %s regularizer { l2_regularizer { weight: 4e-05 } }
        initializer { random_normal_initializer { mean: 0.0 stddev: 0.01 } }
        batch_norm { scale: true decay: 0.99 epsilon: 0.001 }
      }
"""
_COMMON = """
    inplace_batchnorm_update: true freeze_batchnorm: false num_classes: 3
    box_coder {
      faster_rcnn_box_coder { y_scale: 10.0 x_scale: 10.0 height_scale: 5.0 width_scale: 5.0 }
    }
    matcher {
      argmax_matcher {
        matched_threshold: 0.5 unmatched_threshold: 0.5 ignore_thresholds: false
        negatives_lower_than_unmatched: true force_match_for_each_row: true use_matmul_gather: true
      }
    }
    similarity_calculator { iou_similarity { } }
    encode_background_as_zeros: true normalize_loss_by_num_matches: true
    post_processing {
      batch_non_max_suppression {
        score_threshold: 1e-8 iou_threshold: %s
        max_detections_per_class: 100 max_total_detections: 100
      }
      score_converter: SIGMOID
    }
"""
_TRAINING = """
train_config: {
  batch_size: %d num_steps: 50000 sync_replicas: true startup_delay_steps: 0
  fine_tune_checkpoint: "ckpt-0" fine_tune_checkpoint_type: "classification"
  fine_tune_checkpoint_version: V2 max_number_of_boxes: 100 unpad_groundtruth_tensors: false
  data_augmentation_options { random_horizontal_flip { } }
  data_augmentation_options { %s }
  optimizer { %s use_moving_average: false }
}
train_input_reader: { tf_record_input_reader { input_path: "data/train.record" } }
eval_config: { metrics_set: "coco_detection_metrics" use_moving_averages: false batch_size: 1; }
eval_input_reader: {
  shuffle: false num_epochs: 1 tf_record_input_reader { input_path: "data/val.record" }
}
"""
_COSINE = """
    momentum_optimizer: {
      learning_rate: {
        cosine_decay_learning_rate {
          learning_rate_base: .08 total_steps: 50000 warmup_learning_rate: .026 warmup_steps: 1000
        }
      }
      momentum_optimizer_value: 0.9
    }
"""
_PYRAMID = """
model {
  ssd { %s
    anchor_generator {
      multiscale_anchor_generator {
        min_level: 3 max_level: 7 anchor_scale: 4.0 aspect_ratios: [1.0, 2.0, 0.5]
        scales_per_octave: %d
      }
    }
    image_resizer { %s }
    box_predictor {
      weight_shared_convolutional_box_predictor { %s
        class_prediction_bias_init: -4.6 kernel_size: 3 use_depthwise: true
      }
    }
    feature_extractor { %s }
    loss {
      classification_loss { weighted_sigmoid_focal { alpha: 0.25 gamma: %s } }
      localization_loss { weighted_smooth_l1 { } }
      classification_weight: 1.0 localization_weight: 1.0
    }
    normalize_loc_loss_by_codesize: true
  }
}
"""
_LIGHT, _SWISH = _CONVOLUTIONS % "RELU_6", _CONVOLUTIONS % "SWISH"
FPNLITE = _PYRAMID % (
    _COMMON % "0.6",
    2,
    "fixed_shape_resizer { height: 320 width: 320 }",
    f"depth: 128 num_layers_before_predictor: 4 share_prediction_tower: true {_LIGHT}",
    "type: 'ssd_mobilenet_v2_fpn_keras' use_depthwise: true min_depth: 16 depth_multiplier: 1.0 "
    f"fpn {{ min_level: 3 max_level: 7 additional_layer_depth: 128 }} {_LIGHT}",
    "2.0",
) + _TRAINING % (128, "random_crop_image { min_object_covered: 0.0 min_area: 0.75 }", _COSINE)
EFFICIENTDET = _PYRAMID % (
    _COMMON % "0.5",
    3,
    "keep_aspect_ratio_resizer { min_dimension: 512 max_dimension: 512 "
    "pad_to_max_dimension: true }",
    f"depth: 64 num_layers_before_predictor: 3 {_SWISH}",
    "type: 'ssd_efficientnet-b0_bifpn_keras' "
    f"bifpn {{ min_level: 3 max_level: 7 num_iterations: 3 num_filters: 64 }} {_SWISH}",
    "1.5",
) + _TRAINING % (
    128,
    "random_scale_crop_and_pad_to_square { output_size: 512 scale_min: 0.1 scale_max: 2.0 }",
    _COSINE,
)
MOBILENET = (
    f"""
model {{
  ssd {{ {_COMMON % "0.6"}
    anchor_generator {{
      ssd_anchor_generator {{
        num_layers: 6 min_scale: 0.2 max_scale: 0.95 aspect_ratios: [1.0, 2.0, 0.5, 3.0, 0.3333]
      }}
    }}
    image_resizer {{ fixed_shape_resizer {{ height: 300 width: 300 }} }}
    box_predictor {{
      convolutional_box_predictor {{
        min_depth: 0 max_depth: 0 num_layers_before_predictor: 0 use_dropout: false
        kernel_size: 3 box_code_size: 4 {_LIGHT}
      }}
    }}
    feature_extractor {{ type: 'ssd_mobilenet_v2' min_depth: 16 use_depthwise: true {_LIGHT} }}
    loss {{
      classification_loss {{ weighted_sigmoid {{ }} }}
      localization_loss {{ weighted_smooth_l1 {{ }} }}
      hard_example_miner {{
        num_hard_examples: 3000 iou_threshold: 0.99 max_negatives_per_positive: 3
      }}
      classification_weight: 1.0 localization_weight: 1.0
    }}
  }}
}}
"""
    + _TRAINING
    % (
        24,
        "ssd_random_crop { }",
        "rms_prop_optimizer { "
        "learning_rate { exponential_decay_learning_rate { decay_steps: 8000 } } }",
    )
)
FASTER_RCNN = (
    """
model {
  faster_rcnn {
    num_classes: 3
    image_resizer {
      keep_aspect_ratio_resizer {
        min_dimension: 640 max_dimension: 640 pad_to_max_dimension: true
      }
    }
    feature_extractor { type: 'faster_rcnn_resnet50_keras' batch_norm_trainable: true }
    first_stage_anchor_generator {
      grid_anchor_generator { scales: [0.25, 0.5, 1.0, 2.0] height_stride: 16 width_stride: 16 }
    }
    first_stage_nms_score_threshold: 0.0 first_stage_nms_iou_threshold: 0.7
    first_stage_max_proposals: 300 first_stage_localization_loss_weight: 2.0
    initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
    second_stage_post_processing {
      batch_non_max_suppression {
        score_threshold: 0.0 iou_threshold: 0.6 max_detections_per_class: 100
        max_total_detections: 300
      }
      score_converter: SOFTMAX
    }
    second_stage_localization_loss_weight: 2.0 clip_anchors_to_image: true
  }
}
"""
    + _TRAINING % (64, "random_adjust_hue { }", _COSINE)
)
