"""The fields of the Object Detection API's messages, in the lists of what the importer does.

Each field stands once, in one of the places where its message may be, with some value.
"""

CARRIED_OVER = """
model {
  ssd {
    num_classes: 7
    post_processing { batch_non_max_suppression { max_total_detections: 7 iou_threshold: 0.25 } }
    image_resizer {
      fixed_shape_resizer { height: 7 width: 7 convert_to_grayscale: true }
      keep_aspect_ratio_resizer {
        max_dimension: 7 pad_to_max_dimension: true convert_to_grayscale: true
      }
    }
    feature_extractor {
      type: 'x'
      conv_hyperparams {
        regularizer { l2_regularizer { weight: 0.01 } } batch_norm { decay: 0.25 }
      }
      fpn { additional_layer_depth: 7 }
      bifpn { num_iterations: 7 num_filters: 7 }
      use_depthwise: true
    }
    box_coder {
      faster_rcnn_box_coder { y_scale: 0.25 x_scale: 0.25 height_scale: 0.25 width_scale: 0.25 }
    }
    matcher {
      argmax_matcher {
        force_match_for_each_row: true matched_threshold: 0.25 unmatched_threshold: 0.25
      }
    }
    normalize_loc_loss_by_codesize: true
    similarity_calculator { iou_similarity { } }
    encode_background_as_zeros: true
    box_predictor {
      weight_shared_convolutional_box_predictor {
        num_layers_before_predictor: 7 depth: 7 use_depthwise: true
        conv_hyperparams { activation: SWISH }
      }
    }
    anchor_generator {
      multiscale_anchor_generator { anchor_scale: 0.25 aspect_ratios: 0.25 scales_per_octave: 7 }
    }
    loss {
      classification_loss { weighted_sigmoid_focal { alpha: 0.25 gamma: 0.25 } }
      localization_loss { weighted_giou { } weighted_smooth_l1 { delta: 0.25 } }
      classification_weight: 0.25 localization_weight: 0.25
    }
    freeze_batchnorm: true
  }
  faster_rcnn { num_classes: 7 feature_extractor { type: 'x' batch_norm_trainable: true } }
  center_net { num_classes: 7 }
}
train_config {
  batch_size: 7
  data_augmentation_options {
    random_adjust_brightness { max_delta: 0.25 }
    random_adjust_contrast { min_delta: 0.25 max_delta: 0.25 }
    random_adjust_saturation { min_delta: 0.25 max_delta: 0.25 }
    random_crop_image {
      min_object_covered: 0.25 min_aspect_ratio: 0.25 max_aspect_ratio: 0.25 min_area: 0.25
      max_area: 0.25 overlap_thresh: 0.25 random_coef: 0.25
    }
    ssd_random_crop {
      operations {
        min_object_covered: 0.25 min_aspect_ratio: 0.25 max_aspect_ratio: 0.25 min_area: 0.25
        max_area: 0.25 overlap_thresh: 0.25 random_coef: 0.25
      }
    }
    random_square_crop_by_scale { scale_min: 0.25 scale_max: 0.25 }
    random_scale_crop_and_pad_to_square { scale_min: 0.25 scale_max: 0.25 }
  }
  sync_replicas: true
  optimizer {
    momentum_optimizer {
      learning_rate {
        constant_learning_rate { learning_rate: 0.25 }
        exponential_decay_learning_rate {
          initial_learning_rate: 0.25 decay_steps: 7 decay_factor: 0.25 staircase: false
          burnin_learning_rate: 0.25 burnin_steps: 7 min_learning_rate: 0.25
        }
        manual_step_learning_rate {
          initial_learning_rate: 0.25
          schedule { step: 7 learning_rate: 0.25 }
          warmup: true
        }
        cosine_decay_learning_rate {
          learning_rate_base: 0.25 total_steps: 20000 warmup_learning_rate: 0.001 warmup_steps: 7
          hold_base_rate_steps: 7
        }
      }
      momentum_optimizer_value: 0.25
    }
    rms_prop_optimizer { momentum_optimizer_value: 0.25 decay: 0.25 epsilon: 0.25 }
    adam_optimizer { epsilon: 0.25 }
    use_moving_average: false moving_average_decay: 0.25
  }
  gradient_clipping_by_norm: 0.25 num_steps: 7 add_regularization_loss: false use_bfloat16: true
}
train_input_reader {
  label_map_path: 'data/labels.pbtxt'
  tf_record_input_reader { input_path: 'data/y.record' }
}
eval_config { metrics_set: 'coco_detection_metrics' use_moving_averages: true }
eval_input_reader {
  label_map_path: 'data/labels.pbtxt'
  tf_record_input_reader { input_path: 'data/x.record' }
}
"""
"""They are in the pipeline."""

CHANGES_THE_RESULT = """
model {
  ssd {
    image_resizer {
      fixed_shape_resizer { resize_method: AREA }
      keep_aspect_ratio_resizer {
        min_dimension: 7 resize_method: AREA per_channel_pad_value: 0.25
      }
      identity_resizer { }
      conditional_shape_resizer {
        condition: SMALLER size_threshold: 7 resize_method: AREA convert_to_grayscale: true
      }
      pad_to_multiple_resizer { multiple: 7 convert_to_grayscale: true }
    }
    feature_extractor { conv_hyperparams { regularizer { l1_regularizer { weight: 0.25 } } } }
    matcher {
      argmax_matcher {
        ignore_thresholds: true
        negatives_lower_than_unmatched: false
      }
    }
    similarity_calculator {
      neg_sq_dist_similarity { } ioa_similarity { }
      thresholded_iou_similarity { iou_threshold: 0.25 }
    }
    negative_class_weight: 0.25
    anchor_generator {
      grid_anchor_generator {
        height: 7 width: 7 height_stride: 7 width_stride: 7 height_offset: 7 width_offset: 7
        scales: 0.25 aspect_ratios: 0.25
      }
      ssd_anchor_generator {
        num_layers: 7 min_scale: 0.25 max_scale: 0.25 scales: 0.25 aspect_ratios: 0.25
        interpolated_scale_aspect_ratio: 0.25 reduce_boxes_in_lowest_layer: false
        base_anchor_height: 0.25 base_anchor_width: 0.25 height_stride: 7 width_stride: 7
        height_offset: 7 width_offset: 7
      }
      multiscale_anchor_generator {
        min_level: 7 max_level: 9
        normalize_coordinates: false
      }
      flexible_grid_anchor_generator {
        anchor_grid {
          base_sizes: 0.25 aspect_ratios: 0.25 height_stride: 7 width_stride: 7 height_offset: 7
          width_offset: 7
        }
        normalize_coordinates: false
      }
    }
    post_processing {
      batch_non_max_suppression {
        score_threshold: 0.25 max_detections_per_class: 7
        use_class_agnostic_nms: true max_classes_per_detection: 7
        soft_nms_sigma: 0.25 change_coordinate_frame: false use_hard_nms: true
      }
      score_converter: SOFTMAX logit_scale: 0.25
      calibration_config {
        function_approximation {
          x_y_pairs { x_y_pair { x: 0.25 y: 0.25 } training_data_type: CLASS_SPECIFIC }
        }
        class_id_function_approximations { class_id_xy_pairs_map { key: 1 } }
        sigmoid_calibration { sigmoid_parameters { a: 0.25 b: 0.25 } }
        class_id_sigmoid_calibrations { class_id_sigmoid_parameters_map { key: 1 } }
        temperature_scaling_calibration { scaler: 0.25 }
      }
    }
    normalize_loss_by_num_matches: false
    loss {
      localization_loss {
        weighted_l2 { anchorwise_output: true }
        weighted_smooth_l1 { anchorwise_output: true }
        weighted_iou { } l1_localization_loss { }
      }
      classification_loss {
        weighted_sigmoid { anchorwise_output: true }
        weighted_softmax { anchorwise_output: true logit_scale: 0.25 }
        weighted_logits_softmax { anchorwise_output: true logit_scale: 0.25 }
        bootstrapped_sigmoid { alpha: 0.25 hard_bootstrap: true anchorwise_output: true }
        weighted_sigmoid_focal { anchorwise_output: true }
        penalty_reduced_logistic_focal_loss { alpha: 0.25 beta: 0.25 }
        weighted_dice_classification_loss {
          squared_normalization: true is_prediction_probability: true
        }
      }
      hard_example_miner {
        num_hard_examples: 7 iou_threshold: 0.25 loss_type: LOCALIZATION
        max_negatives_per_positive: 7 min_negatives_per_image: 7
      }
      random_example_sampler { positive_sample_fraction: 0.25 }
      equalization_loss { weight: 0.25 exclude_prefixes: 'x' }
      expected_loss_weights: REWEIGHTING_UNMATCHED_ANCHORS min_num_negative_samples: 0.25
      desired_negative_sampling_ratio: 0.25
    }
    use_confidences_as_targets: true implicit_example_weight: 0.25
    mask_head_config { mask_loss_weight: 0.25 mask_loss_sample_size: 7 }
  }
  faster_rcnn {
    number_of_stages: 7 first_stage_nms_score_threshold: 0.25 first_stage_nms_iou_threshold: 0.25
    first_stage_localization_loss_weight: 0.25 first_stage_objectness_loss_weight: 0.25
    second_stage_localization_loss_weight: 0.25 second_stage_classification_loss_weight: 0.25
    second_stage_mask_prediction_loss_weight: 0.25 clip_anchors_to_image: true
  }
  center_net {
    object_detection_task {
      task_loss_weight: 0.25 offset_loss_weight: 0.25 scale_loss_weight: 0.25
    }
    object_center_params { object_center_loss_weight: 0.25 }
    keypoint_estimation_task {
      task_loss_weight: 0.25 keypoint_regression_loss_weight: 0.25
      keypoint_heatmap_loss_weight: 0.25 keypoint_offset_loss_weight: 0.25
      keypoint_depth_loss_weight: 0.25
    }
    mask_estimation_task { task_loss_weight: 0.25 }
    densepose_estimation_task {
      task_loss_weight: 0.25 part_loss_weight: 0.25 coordinate_loss_weight: 0.25
    }
    track_estimation_task { task_loss_weight: 0.25 }
    temporal_offset_task { task_loss_weight: 0.25 }
    deepmac_mask_estimation {
      task_loss_weight: 0.25 box_consistency_loss_weight: 0.25 color_consistency_loss_weight: 0.25
      box_consistency_loss_normalize: NORMALIZE_BALANCED
    }
  }
}
train_config {
  data_augmentation_options {
    normalize_image {
      original_minval: 0.25 original_maxval: 0.25 target_minval: 0.25 target_maxval: 0.25
    }
    random_horizontal_flip { keypoint_flip_permutation: 7 probability: 0.25 }
    random_pixel_value_scale { minval: 0.25 maxval: 0.25 }
    random_image_scale { min_scale_ratio: 0.25 max_scale_ratio: 0.25 }
    random_rgb_to_gray { probability: 0.25 }
    random_adjust_hue { max_delta: 0.25 }
    random_distort_color { color_ordering: 7 }
    random_jitter_boxes { ratio: 0.25 jitter_mode: SHRINK_SYMMETRIC_XY }
    random_crop_image { clip_boxes: false }
    random_pad_image {
      min_image_height: 7 min_image_width: 7 max_image_height: 7 max_image_width: 7
      pad_color: 0.25
    }
    random_crop_pad_image {
      min_object_covered: 0.25 min_aspect_ratio: 0.25 max_aspect_ratio: 0.25 min_area: 0.25
      max_area: 0.25 overlap_thresh: 0.25 clip_boxes: false random_coef: 0.25
      min_padded_size_ratio: 0.25 max_padded_size_ratio: 0.25 pad_color: 0.25
    }
    random_crop_to_aspect_ratio { aspect_ratio: 0.25 overlap_thresh: 0.25 clip_boxes: false }
    random_black_patches { max_black_patches: 7 probability: 0.25 size_to_image_ratio: 0.25 }
    random_resize_method { target_height: 7 target_width: 7 }
    scale_boxes_to_pixel_coordinates { }
    resize_image { new_height: 7 new_width: 7 method: NEAREST_NEIGHBOR }
    subtract_channel_mean { means: 0.25 }
    ssd_random_crop { operations { clip_boxes: false } }
    ssd_random_crop_pad {
      operations {
        min_object_covered: 0.25 min_aspect_ratio: 0.25 max_aspect_ratio: 0.25 min_area: 0.25
        max_area: 0.25 overlap_thresh: 0.25 clip_boxes: false random_coef: 0.25
        min_padded_size_ratio: 0.25 max_padded_size_ratio: 0.25 pad_color_r: 0.25
        pad_color_g: 0.25 pad_color_b: 0.25
      }
    }
    ssd_random_crop_fixed_aspect_ratio {
      operations {
        min_object_covered: 0.25 min_area: 0.25 max_area: 0.25 overlap_thresh: 0.25
        clip_boxes: false random_coef: 0.25
      }
      aspect_ratio: 0.25
    }
    ssd_random_crop_pad_fixed_aspect_ratio {
      operations {
        min_object_covered: 0.25 min_aspect_ratio: 0.25 max_aspect_ratio: 0.25 min_area: 0.25
        max_area: 0.25 overlap_thresh: 0.25 clip_boxes: false random_coef: 0.25
      }
      aspect_ratio: 0.25 min_padded_size_ratio: 0.25 max_padded_size_ratio: 0.25
    }
    random_vertical_flip { keypoint_flip_permutation: 7 probability: 0.25 }
    random_rotation90 { keypoint_rot_permutation: 7 probability: 0.25 }
    rgb_to_gray { }
    convert_class_logits_to_softmax { temperature: 0.25 }
    random_absolute_pad_image { max_height_padding: 7 max_width_padding: 7 pad_color: 0.25 }
    random_self_concat_image {
      concat_vertical_probability: 0.25 concat_horizontal_probability: 0.25
    }
    autoaugment_image { policy_name: 'x' }
    drop_label_probabilistically { label: 7 drop_probability: 0.25 }
    remap_labels { original_labels: 7 new_label: 7 }
    random_jpeg_quality { random_coef: 0.25 min_jpeg_quality: 7 max_jpeg_quality: 7 }
    random_downscale_to_target_pixels {
      random_coef: 0.25 min_target_pixels: 7 max_target_pixels: 7
    }
    random_patch_gaussian {
      random_coef: 0.25 min_patch_size: 7 max_patch_size: 7 min_gaussian_stddev: 0.25
      max_gaussian_stddev: 0.25
    }
    random_square_crop_by_scale { max_border: 7 num_scales: 7 }
    random_scale_crop_and_pad_to_square { output_size: 7 }
    adjust_gamma { gamma: 0.25 gain: 0.25 }
  }
  fine_tune_checkpoint: 'x' bias_grad_multiplier: 0.25 update_trainable_variables: 'x'
  freeze_variables: 'x' merge_multiple_label_boxes: true use_multiclass_scores: true
}
train_input_reader {
  shuffle: false num_epochs: 7 sample_1_of_n_examples: 7 num_additional_channels: 7
  num_keypoints: 7 keypoint_type_weight: 0.25 max_number_of_boxes: 7 load_multiclass_scores: true
  load_context_features: true load_context_image_ids: true load_instance_masks: true
  mask_type: PNG_MASKS load_dense_pose: true load_track_id: true
  load_keypoint_depth_features: true input_type: TF_SEQUENCE_EXAMPLE frame_index: 7
  use_keypoint_label_map: true external_input_reader { } sample_from_datasets_weights: 0.25
  expand_labels_hierarchy: true
}
eval_config {
  parameterized_metric {
    coco_keypoint_metrics { class_label: 'x' keypoint_label_to_sigmas { key: 'x' } }
  }
  ignore_groundtruth: true eval_instance_masks: true
  super_categories { key: 'x' }
  recall_lower_bound: 0.25 recall_upper_bound: 0.25 force_no_resize: true
  skip_predictions_for_unlabeled_class: true
}
graph_rewriter { quantization { delay: 7 weight_bits: 7 activation_bits: 7 symmetric: true } }
eval_input_reader { sample_1_of_n_examples: 7 max_number_of_boxes: 7 }
"""
"""They are reported first."""

NETWORK = """
model {
  ssd {
    feature_extractor {
      depth_multiplier: 0.25 min_depth: 7
      conv_hyperparams {
        op: FC
        initializer {
          truncated_normal_initializer { mean: 0.25 stddev: 0.25 }
          variance_scaling_initializer { factor: 0.25 uniform: true mode: FAN_AVG }
          random_normal_initializer { mean: 0.25 stddev: 0.25 }
          keras_initializer_by_name: 'x'
        }
        activation: SWISH
        batch_norm { center: false scale: true epsilon: 0.25 train: false }
        group_norm { } regularize_depthwise: true force_use_bias: true
      }
      override_base_feature_extractor_hyperparams: true pad_to_multiple: 7
      use_explicit_padding: true
      fpn { min_level: 7 max_level: 9 }
      bifpn { min_level: 7 max_level: 9 combine_method: 'x' }
      num_layers: 7 spaghettinet_arch_name: 'x'
    }
    box_coder {
      mean_stddev_box_coder { stddev: 0.25 }
      square_box_coder { y_scale: 0.25 x_scale: 0.25 length_scale: 0.25 }
      keypoint_box_coder {
        num_keypoints: 7 y_scale: 0.25 x_scale: 0.25 height_scale: 0.25 width_scale: 0.25
      }
    }
    box_predictor {
      convolutional_box_predictor {
        min_depth: 7 max_depth: 7 num_layers_before_predictor: 7 use_dropout: false
        dropout_keep_probability: 0.25 kernel_size: 7 box_code_size: 7
        apply_sigmoid_to_scores: true class_prediction_bias_init: 0.25 use_depthwise: true
        box_encodings_clip_range { min: 0.25 max: 0.25 }
      }
      mask_rcnn_box_predictor {
        use_dropout: true dropout_keep_probability: 0.25 box_code_size: 7
        predict_instance_masks: true mask_prediction_conv_depth: 7 predict_keypoints: true
        mask_height: 7 mask_width: 7 mask_prediction_num_conv_layers: 7
        masks_are_class_agnostic: true share_box_across_classes: true
        convolve_then_upsample_masks: true
      }
      rfcn_box_predictor {
        num_spatial_bins_height: 7 num_spatial_bins_width: 7 depth: 7 box_code_size: 7
        crop_height: 7 crop_width: 7
      }
      weight_shared_convolutional_box_predictor {
        apply_conv_hyperparams_to_heads: true apply_conv_hyperparams_pointwise: true
        kernel_size: 7 box_code_size: 7 class_prediction_bias_init: 0.25 use_dropout: true
        dropout_keep_probability: 0.25 share_prediction_tower: true
        score_converter: SIGMOID
        box_encodings_clip_range { min: 0.25 max: 0.25 }
      }
    }
    add_background_class: false explicit_background_class: true
    mask_head_config {
      mask_height: 7 mask_width: 7 masks_are_class_agnostic: false mask_prediction_conv_depth: 7
      mask_prediction_num_conv_layers: 7 convolve_then_upsample_masks: true initial_crop_size: 7
    }
  }
  faster_rcnn {
    feature_extractor {
      first_stage_features_stride: 7 override_base_feature_extractor_hyperparams: true
      pad_to_multiple: 7
    }
    first_stage_atrous_rate: 7 first_stage_box_predictor_kernel_size: 7
    first_stage_box_predictor_depth: 7 first_stage_minibatch_size: 7
    first_stage_positive_balance_fraction: 0.25 first_stage_max_proposals: 7 initial_crop_size: 7
    maxpool_kernel_size: 7 maxpool_stride: 7 second_stage_batch_size: 7
    second_stage_balance_fraction: 0.5 resize_masks: false
    context_config {
      max_num_context_features: 7 attention_bottleneck_dimension: 7 attention_temperature: 0.25
      context_feature_length: 7 use_self_attention: true use_long_term_attention: false
      self_attention_in_sequence: true num_attention_heads: 7 num_attention_layers: 7
      attention_position: POST_RPN
    }
  }
  center_net {
    feature_extractor {
      channel_means: 0.25 channel_stds: 0.25 bgr_ordering: true use_depthwise: true
      depth_multiplier: 0.25 use_separable_conv: true upsampling_interpolation: 'x'
    }
    use_depthwise: true
    object_detection_task { scale_head_params { num_filters: 7 kernel_sizes: 7 } }
    object_center_params {
      heatmap_bias_init: 0.25 min_box_overlap_iou: 0.25 max_box_predictions: 7
      use_labeled_classes: true keypoint_weights_for_center: 0.25 peak_max_pool_kernel_size: 7
    }
    keypoint_label_map_path: 'x'
    keypoint_estimation_task {
      task_name: 'x' keypoint_class_name: 'x'
      keypoint_label_to_std { key: 'x' }
      heatmap_bias_init: 0.25 keypoint_candidate_score_threshold: 0.25
      num_candidates_per_keypoint: 7 peak_max_pool_kernel_size: 7 unmatched_keypoint_score: 0.25
      box_scale: 0.25 candidate_search_scale: 0.25 candidate_ranking_mode: 'x'
      score_distance_offset: 0.25 score_distance_multiplier: 0.25 std_dev_multiplier: 0.25
      offset_peak_radius: 7 per_keypoint_offset: true predict_depth: true per_keypoint_depth: true
      clip_out_of_frame_keypoints: true rescore_instances: true rescoring_threshold: 0.25
      gaussian_denom_ratio: 0.25 argmax_postprocessing: true
    }
    mask_estimation_task {
      mask_height: 7 mask_width: 7 score_threshold: 0.25 heatmap_bias_init: 0.25
    }
    densepose_estimation_task {
      class_id: 7 num_parts: 7 upsample_to_input_res: false heatmap_bias_init: 0.25
    }
    track_estimation_task { num_track_ids: 7 reid_embed_size: 7 num_fc_layers: 7 }
    deepmac_mask_estimation {
      dim: 7 pixel_embedding_dim: 7 allowed_masked_classes_ids: 7 mask_size: 7
      mask_num_subsamples: 7 use_xy: false network_type: 'x' use_instance_embedding: false
      num_init_channels: 7 predict_full_resolution_masks: true postprocess_crop_size: 7
      max_roi_jitter_ratio: 0.25 jitter_mode: SHRINK_SYMMETRIC_XY
      color_consistency_threshold: 0.25 color_consistency_dilation: 7
      box_consistency_tightness: true color_consistency_warmup_steps: 7
      color_consistency_warmup_start: 7 use_only_last_stage: true
    }
  }
}
"""
"""Details of a network that becomes another one."""

WITHOUT_EFFECT = """
model {
  ssd {
    feature_extractor { replace_preprocessor_with_placeholder: true }
    matcher {
      argmax_matcher { use_matmul_gather: true }
      bipartite_matcher { use_matmul_gather: true }
    }
    post_processing {
      batch_non_max_suppression {
        use_static_shapes: true use_partitioned_nms: true use_combined_nms: true use_cpu_nms: true
      }
    }
    inplace_batchnorm_update: true return_raw_detections_during_predict: true
  }
  faster_rcnn {
    inplace_batchnorm_update: true use_matmul_crop_and_resize: true
    use_matmul_gather_in_matcher: true use_static_balanced_label_sampler: true
    use_static_shapes: true use_static_shapes_for_eval: true
    use_partitioned_nms_in_first_stage: false return_raw_detections_during_predict: true
    use_combined_nms_in_first_stage: true output_final_box_features: true
    output_final_box_rpn_features: true
  }
  center_net { compute_heatmap_sparse: true }
}
train_config {
  keep_checkpoint_every_n_hours: 0.25 fine_tune_checkpoint_type: 'x'
  fine_tune_checkpoint_version: V2 from_detection_checkpoint: true
  load_all_detection_checkpoint_vars: true run_fine_tune_checkpoint_dummy_computation: false
  startup_delay_steps: 0.25 replicas_to_aggregate: 7 batch_queue_capacity: 7
  num_batch_queue_threads: 7 prefetch_queue_capacity: 7 max_number_of_boxes: 7
  unpad_groundtruth_tensors: false retain_original_images: true summarize_gradients: true
}
train_input_reader {
  name: 'x' shuffle_buffer_size: 7 filenames_shuffle_buffer_size: 7 num_readers: 7
  num_parallel_batches: 7 num_prefetch_batches: 7 queue_capacity: 7 min_after_dequeue: 7
  read_block_length: 7 prefetch_size: 7 num_parallel_map_calls: 7 drop_remainder: false
  use_display_name: true include_source_id: true
}
eval_config {
  batch_size: 7 num_visualizations: 7 num_examples: 7 eval_interval_secs: 7 max_evals: 7
  save_graph: true visualization_export_dir: 'x' eval_master: 'x' export_path: 'x'
  min_score_threshold: 0.25 max_num_boxes_to_visualize: 7 skip_scores: true skip_labels: true
  visualize_groundtruth_boxes: true groundtruth_box_visualization_color: 'x'
  keep_image_id_for_visualization_export: true retain_original_images: false
  include_metrics_per_category: true all_metrics_per_category: true
  retain_original_image_additional_channels: true use_dummy_loss_in_eval: true
  keypoint_edge { start: 7 end: 7 }
}
eval_input_reader { shuffle: true num_epochs: 1 }
"""
"""They do not change the result."""
