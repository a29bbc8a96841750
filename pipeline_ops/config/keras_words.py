"""Words of Keras and TensorFlow that a config has under another name, and how to write them.

They come from the arguments of `compile`, `fit` and the optimizers, from Keras's layers for
augmentation, and from `ImageDataGenerator`. Upper case and underscores do not count.
"""

from __future__ import annotations

_AUGMENT, _ADAM = "train.input.augment", "{class: keras.optimizers:Adam, arguments: {%s: ...}}"

_WORDS = {
    f"{_AUGMENT}: {{flip_left_right: true}}": "horizontal_flip random_flip flip",
    f"{_AUGMENT}: {{flip_top_bottom: true}}": "vertical_flip",
    f"{_AUGMENT}: {{scale: {{min: 0.8, max: 1.2}}}}": "zoom random_zoom zoom_range",
    f"{_AUGMENT}: {{rotation: 15}}, in degrees": "random_rotation rotation_range rotate",
    f"{_AUGMENT}: {{shift: 0.1}}": "random_translation translation width_shift_range "
    "height_shift_range",
    f"{_AUGMENT}: {{crops: [{{min_area: 0.5}}]}}": "random_crop random_resized_crop",
    f"{_AUGMENT}: {{brightness: 0.1}}": "random_brightness brightness_range",
    f"{_AUGMENT}: {{contrast: 0.1}}": "random_contrast contrast_range",
    f"{_AUGMENT}: {{saturation: 0.1}}": "random_saturation random_color_jitter",
    f"{_AUGMENT}: {{own: my_module:function}}": "random_hue hue random_shear shear shear_range "
    "random_erasing cutout rand_augment aug_mix auto_augment channel_shift_range random_grayscale "
    "random_gaussian_blur preprocessing_function",
    "preprocess.stages: [{resize: {height: 224, width: 224}}]": "resizing target_size image_size",
    "preprocess.split: {train: 0.8, validation: 0.1, test: 0.1}": "validation_split",
    "train.optimizer: {clip: {norm: 1.0}}": "clipnorm clip_norm",
    "train.optimizer: {clip: {global_norm: 1.0}}": "global_clipnorm gradient_clip clip_gradients",
    "train.optimizer: {clip: {value: 0.5}}": "clipvalue clip_value",
    "train.optimizer: {average_weights: 0.999}": "use_ema ema_momentum ema ema_overwrite_frequency",
    "train.optimizer: {learning_rate: 0.001}": "lr base_lr initial_learning_rate",
    "train.optimizer: {schedule: {type: cosine, warmup_steps: 100}}": "lr_schedule lr_decay warmup",
    "train.micro_batches: 4": "gradient_accumulation_steps accumulation_steps accumulate",
    "train.global_batch_size: 64": "batch_size",
    "train.class_weights: true": "class_weight",
    "train.debug: [eager]": "run_eagerly",
    "train.xla: step": "jit_compile",
    "train.steps_per_call: 10": "steps_per_execution",
    "train.steps: 1000": "max_steps total_steps train_steps",
    "train.precision: float16": "mixed_precision dtype_policy amp fp16",
    "train.epochs: 10": "num_epochs n_epochs max_epochs",
} | {f"train.optimizer: {_ADAM % word}": word for word in ("beta_1", "beta_2", "amsgrad")}
_LOSS = "leave train.loss out, because the cross-entropy of whole numbers as labels is the default"
_ACCURACY = "leave it out, because every training reports the accuracy"
_LEFT_OUT = {
    "sparse_categorical_crossentropy": _LOSS,
    "categorical_crossentropy": _LOSS,
    "accuracy": _ACCURACY,
    "sparse_categorical_accuracy": _ACCURACY,
    "steps_per_epoch": "leave it out, because an epoch is one pass over the training data",
}


def _reduce(word: str) -> str:
    return word.replace("_", "").lower()


CURES = {_reduce(word): cure for word, cure in _LEFT_OUT.items()} | {
    _reduce(word): f"write {cure}" for cure, words in _WORDS.items() for word in words.split()
}


def find_cure(word: str) -> str | None:
    """Returns how to say a word of Keras in a config, as an imperative, or None."""
    return CURES.get(_reduce(word))
