"""Backbones: from the features of an item to one score per class. By name, or any `nn.Module` of your own.

| name                                   | for                                      |
|----------------------------------------|------------------------------------------|
| `linear`                               | vectors                                  |
| `mlp`                                  | vectors (one hidden layer of 128, dropout) |
| `mlp_batch_norm`                       | the same, with batch norm before both layers |
| `cnn`                                  | small images, (height, width) or (channels, height, width) |
| `resnet18`, `resnet34`, `vgg16` ...    | images; any classifier of torchvision    |
"""

from __future__ import annotations

import copy
import math
import warnings

import torch
from torch import nn

from pyrocrowd.errors import PyrocrowdError, did_you_mean

ROWS_FOR_STATISTICS = 10_000


def backbone(name, crowd, hidden=128, dropout=0.5, standardise=True) -> nn.Module:
    """A network that maps `crowd.features` to logits, shape (items, n_classes).

    Parameters
    ----------
    name : str or nn.Module
        A module is copied, so that every fit starts from the weights it was given with.
    crowd : Crowd
        Tells the shape of the features and the number of classes.
    hidden, dropout : of the `mlp`
    standardise : bool
        Shift and scale vectors by the crowd's own mean and deviation first (`linear` and `mlp`).
    """
    if isinstance(name, nn.Module):
        return copy.deepcopy(name)
    shape = crowd.feature_shape
    if shape is None:
        raise PyrocrowdError("A backbone needs item features and the crowd has none: give them with --features F.")
    size, classes = math.prod(shape), crowd.n_classes
    if name == "linear":
        return nn.Sequential(*_input_layers(crowd, standardise), nn.Linear(size, classes))
    if name == "mlp":
        hidden_layers = nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout)
        return nn.Sequential(*_input_layers(crowd, standardise), *hidden_layers, nn.Linear(hidden, classes))
    if name == "mlp_batch_norm":  # batch norm takes the place of standardising
        first = nn.BatchNorm1d(size, affine=False), nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout)
        return nn.Sequential(nn.Flatten(), *first, nn.BatchNorm1d(hidden, affine=False), nn.Linear(hidden, classes))
    if name == "cnn":
        return _small_cnn(shape, classes)
    return _torchvision(name, shape, classes)


class Standardise(nn.Module):
    """Shift and scale by fixed statistics, which are saved with the weights."""

    def __init__(self, mean, deviation):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, features):
        return (features - self.mean) / self.deviation


def _input_layers(crowd, standardise):
    if not standardise:
        return [nn.Flatten()]
    chosen = torch.linspace(0, crowd.n_items - 1, min(crowd.n_items, ROWS_FOR_STATISTICS)).long()
    rows = crowd.batch(chosen.to(crowd.device)).features.flatten(1)
    deviation = rows.std(0) if len(rows) > 1 else torch.ones_like(rows[0])
    return [nn.Flatten(), Standardise(rows.mean(0), torch.where(deviation > 1e-8, deviation, 1.0))]


class _Images(nn.Module):
    """Gives (items, height, width) the channel dimension that convolutions want, repeated where they want colour."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels

    def forward(self, images):
        images = images.unsqueeze(1) if images.dim() == 3 else images
        return images.expand(-1, self.channels, -1, -1) if images.shape[1] == 1 else images


def _small_cnn(shape, classes):
    if len(shape) not in (2, 3):
        raise PyrocrowdError(f"The backbone cnn needs images, not features of shape {shape}; try mlp.")
    channels = 1 if len(shape) == 2 else shape[0]
    layers = [_Images(channels)]
    for before, after in ((channels, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 16, classes))


def _torchvision(name, shape, classes):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchvision import models
    except Exception as error:  # a mismatch with torch shows as RuntimeError, OSError or ImportError
        raise PyrocrowdError(
            f"The backbone {name} comes from torchvision, which does not load here ({type(error).__name__}): install "
            "torch and torchvision together; linear, mlp and cnn work without it."
        ) from None
    known = [*("linear", "mlp", "mlp_batch_norm", "cnn"), *models.list_models(models)]
    if name not in known:
        raise PyrocrowdError(f"There is no backbone {name!r}.{did_you_mean(name, known)}")
    if len(shape) not in (2, 3):
        raise PyrocrowdError(f"The backbone {name} needs images, not features of shape {shape}; try mlp.")
    return nn.Sequential(_Images(3), models.get_model(name, weights=None, num_classes=classes))
