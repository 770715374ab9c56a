"""Item features wherever they live: an array, a memory-mapped array, a tensor of images or a torch Dataset."""

from __future__ import annotations

import numpy as np
import torch

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
        floats = rows.to(device, torch.get_default_dtype())
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
    """Arrays stay arrays, tensors tensors, Datasets Datasets; lists and frames become arrays."""
    if features is None or isinstance(features, (np.ndarray, torch.Tensor, torch.utils.data.Dataset)):
        return features
    return np.asarray(features)


def check_features(features, n_items) -> list[str]:
    """Every problem of the features, a sentence each."""
    if features is None:
        return []
    if len(features) != n_items:
        return [f"The features have {len(features)} rows for {n_items} items."]
    if isinstance(features, torch.utils.data.Dataset):
        return []
    if features.ndim < 2:
        return ["The features need one row per item and at least one column."]
    if isinstance(features, np.ndarray) and features.dtype.kind not in "fiub":
        return [f"The features must be numbers, not {features.dtype}."]
    bad = 0
    for start in range(0, len(features), ROWS_CHECKED_AT_ONCE):
        chunk = torch.as_tensor(np.array(features[start : start + ROWS_CHECKED_AT_ONCE]))
        bad += int((~torch.isfinite(chunk.flatten(1).float())).any(1).sum()) if chunk.is_floating_point() else 0
    return [f"The features of {bad} items hold NaN or infinite values."] if bad else []


def _first(sample) -> torch.Tensor:
    """A Dataset gives a tensor, or a tuple whose first entry is one."""
    return torch.as_tensor(sample[0] if isinstance(sample, (tuple, list)) else sample)
