"""Statistics of the requests to a model in service: windows, and their sum.

A server counts its requests for some minutes and writes the counts as one line of JSON, a window.
Windows of any number of servers and versions add up. They hold counts of images and answers, and
never an image, a key, a file name or an address. Their features have the bins of the statistics of
data sets (`features.py`), so that production can be compared with training.

A line in a bucket may come from anyone who can write there. `ServingWindow` limits the number of
names, and rejects counts that contradict each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline_ops.contract.features import FEATURES, Histogram, merge_histograms

MAX_CLASSES = 20_000
"""The maximum of distinct classes in a sum. Predictions of further ones are left out."""
MAX_NAME = 200
"""The maximum of characters in the name of a class. Longer ones are cut off."""
_MAX_SECONDS = 1 << 40
_MAX_SUM = 1 << 160

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Property = Literal["format", "mode", "orientation"]
"""`mode` is one of colour, grey, palette, alpha, CMYK and 16 bit. `orientation` is that of EXIF."""
_Properties = dict[Property, Annotated[dict[Name, Count], Field(max_length=32)]]


class ServingWindow(BaseModel):
    """The requests to one version of a model that one server counted in some minutes.

    `start` and `end` are seconds since 1970. Not all images are measured, because this takes a part
    of one core only: `num_measured` files are in `features` and `properties`. `labels` and `score`
    cover all answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: Name
    version: int = Field(ge=1, lt=1 << 53)
    start: int = Field(ge=0, lt=_MAX_SECONDS)
    end: int = Field(ge=0, lt=_MAX_SECONDS)
    num_images: Count
    num_measured: Count = 0
    num_unreadable: Count = 0
    """Files among them whose header or pixels could not be read here."""
    features: dict[str, Histogram] = {}
    labels: dict[Name, Count] = Field({}, max_length=MAX_CLASSES)
    """The predicted classes of images, or those of detected boxes."""
    properties: _Properties = {}

    @model_validator(mode="after")
    def _validate_counts(self) -> ServingWindow:
        if self.end < self.start:
            raise ValueError(f"the window ends at {self.end}, before its start at {self.start}")
        for name, histogram in self.features.items():
            if name not in FEATURES:
                raise ValueError(f"unknown feature {name[:100]!r}")
            _validate_histogram(name, histogram, self.num_images)
        if any(sum(found.values()) > self.num_images for found in self.properties.values()):
            raise ValueError("a property counts more images than there are")
        return self


def _validate_histogram(name: str, histogram: Histogram, num_images: int) -> None:
    counts, ends = histogram.counts, (histogram.minimum, histogram.maximum)
    if len(counts) != len(FEATURES[name].edges) + 1:
        raise ValueError(f"{name} has {len(counts)} bins, not {len(FEATURES[name].edges) + 1}")
    if min(counts) < 0 or sum(counts) != histogram.count or histogram.count > num_images:
        raise ValueError(f"the counts of {name} contradict each other")
    sums = (histogram.total, histogram.total_of_squares)
    if any(abs(each) >= _MAX_SUM for each in sums) or not all(
        each is None or math.isfinite(each) for each in ends
    ):
        raise ValueError(f"a sum or an end of {name} is out of range")


class ServingStatistics(BaseModel):
    """The sum of all windows of a model in a period, as a request pins it.

    `start` and `end` are those of the first and the last request. `versions` counts images by
    version. `damaged` names the first files that could not be read, of `num_damaged`.
    """

    model_config = ConfigDict(frozen=True)

    start: int = 0
    end: int = 0
    num_images: int = 0
    num_measured: int = 0
    num_unreadable: int = 0
    num_windows: int = 0
    versions: dict[int, int] = {}
    features: dict[str, Histogram] = {}
    labels: dict[str, int] = {}
    properties: dict[Property, dict[str, int]] = {}
    num_damaged: int = 0
    damaged: list[str] = []


def add_windows(windows: Iterable[ServingWindow]) -> ServingStatistics:
    """The sum of windows, the same in any order, unless there are more than MAX_CLASSES classes."""
    windows = list(windows)
    versions, labels = Counter[int](), Counter[str]()
    properties: dict[Property, Counter[str]] = {}
    for window in windows:
        versions[window.version] += window.num_images
        for name, count in window.labels.items():
            if name in labels or len(labels) < MAX_CLASSES:
                labels[name] += count
        for kind, found in window.properties.items():
            properties.setdefault(kind, Counter()).update(found)
    return ServingStatistics(
        start=min((window.start for window in windows), default=0),
        end=max((window.end for window in windows), default=0),
        num_images=versions.total(),
        num_measured=sum(window.num_measured for window in windows),
        num_unreadable=sum(window.num_unreadable for window in windows),
        num_windows=len(windows),
        versions=dict(sorted(versions.items())),
        features={
            name: merge_histograms(parts)
            for name in FEATURES
            if (parts := [each.features[name] for each in windows if name in each.features])
        },
        labels=dict(sorted(labels.items())),
        properties={kind: dict(sorted(found.items())) for kind, found in properties.items()},
    )
