"""Item features wherever they live: an array, a memory-mapped array, a tensor of images or a torch Dataset."""

from __future__ import annotations

import numpy as np
import torch

from pyrocrowd.errors import PyrocrowdError, counted, listed

ROWS_CHECKED_AT_ONCE = 65_536


class FeatureSource:
    """One way to ask for some rows, whatever the features are."""

    def __init__(self, features):
        self.features = features

    def rows(self, index, device) -> torch.Tensor | None:
        """Rows `index` as floats on `device`; 8-bit images are scaled to [0, 1]."""
        if self.features is None:
            return None
        if isinstance(self.features, torch.Tensor):
            rows = self.features[index.to(self.features.device)]
        elif isinstance(self.features, np.ndarray):
            rows = torch.as_tensor(np.array(self.features[index.cpu().numpy()]))
        else:
            rows = torch.stack([_first(self.features[int(place)]) for place in index])
        floats = rows.to(torch.get_default_dtype()).to(device)
        return floats / 255 if rows.dtype == torch.uint8 else floats

    def subset(self, index):
        """The features of these items alone."""
        if self.features is None:
            return None
        if isinstance(self.features, torch.Tensor):
            return self.features[torch.as_tensor(index)]
        if isinstance(self.features, np.ndarray):
            return self.features[index]
        return torch.utils.data.Subset(self.features, [int(place) for place in index])

    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        if hasattr(self.features, "shape"):
            return tuple(self.features.shape[1:])
        return tuple(_first(self.features[0]).shape)

    def describe(self) -> str:
        return " x ".join(str(size) for size in self.shape())


def as_features(features):
    """Arrays stay arrays, tensors tensors, Datasets Datasets; lists, frames and sparse matrices become arrays."""
    if features is None or isinstance(features, (torch.Tensor, torch.utils.data.Dataset)):
        return features
    try:
        array = features.toarray() if hasattr(features, "toarray") else np.asanyarray(features)  # keeps a memory map
    except ValueError:
        raise PyrocrowdError("The features are no array: their rows differ in length.") from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))  # torch reads native order


def check_features(features, n_items) -> list[str]:
    """Every problem of the features, a sentence each."""
    if features is None:
        return []
    if getattr(features, "ndim", 1) == 0:
        return ["The features need one row per item and at least one column, not a single value."]
    if len(features) != n_items:
        return [f"The features have {counted(len(features), 'row')} for {counted(n_items, 'item')}."]
    if isinstance(features, torch.utils.data.Dataset):
        return []
    if features.ndim < 2 or 0 in features.shape[1:]:
        return ["The features need one row per item and at least one column."]
    if isinstance(features, np.ndarray) and features.dtype.kind not in "fiub":
        return [f"The features must be numbers, not {features.dtype}."]
    bad = []
    for start in range(0, len(features), ROWS_CHECKED_AT_ONCE):
        chunk = features[start : start + ROWS_CHECKED_AT_ONCE]
        chunk = chunk if isinstance(chunk, torch.Tensor) else torch.as_tensor(np.array(chunk))
        if chunk.is_floating_point():
            finite = torch.isfinite(chunk).flatten(1).all(1).cpu()
            bad += (start + torch.nonzero(~finite).flatten()).tolist()
    if bad:
        return [f"The features of {counted(len(bad), 'item')} hold NaN or infinite values (row {listed(bad)} from 0)."]
    return []


def _first(sample) -> torch.Tensor:
    """A Dataset gives a tensor, or a tuple whose first entry is one."""
    return torch.as_tensor(sample[0] if isinstance(sample, (tuple, list)) else sample)
