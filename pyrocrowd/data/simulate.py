"""Crowds made up from known matrices: the truth behind them can be looked up, so that a fit can be held against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyrocrowd.data.crowd import Crowd
from pyrocrowd.errors import PyrocrowdError


@dataclass
class Simulated:
    """A crowd and what it was drawn from.

    Attributes
    ----------
    crowd : Crowd
        With its truth.
    confusion : array, shape (annotators, classes, classes)
        The matrices that the labels were drawn from, rows = true class.
    """

    crowd: Crowd
    confusion: np.ndarray


def from_confusions(
    truth,
    confusion,
    labels_per_item=3,
    seed=0,
    *,
    features=None,
    item_names=None,
    annotator_names=None,
    class_names=None,
) -> Simulated:
    """Labels of annotators with known confusion matrices: `y_ir ~ Categorical(confusion[r, truth_i])`.

    Parameters
    ----------
    truth : array of int, shape (items,)
    confusion : array, shape (annotators, classes, classes)
    labels_per_item : int
        Each item is labelled by that many different annotators, chosen uniformly.
    """
    truth, confusion = np.asarray(truth), np.asarray(confusion, float)
    annotators, classes = confusion.shape[:2]
    if not 1 <= labels_per_item <= annotators:
        raise PyrocrowdError(f"{labels_per_item} labels per item cannot come from {annotators} different annotators.")
    generator = np.random.default_rng(seed)
    item = np.repeat(np.arange(len(truth)), labels_per_item)
    annotator = _distinct_annotators(generator, len(truth), annotators, labels_per_item)
    thresholds = confusion.cumsum(-1)[annotator, truth[item]]
    label = (generator.random((len(item), 1)) > thresholds).sum(-1).clip(max=classes - 1)
    crowd = Crowd(
        item,
        annotator,
        label,
        item_names=np.arange(len(truth)) if item_names is None else item_names,
        annotator_names=np.arange(annotators) if annotator_names is None else annotator_names,
        class_names=np.arange(classes) if class_names is None else class_names,
        features=features,
        truth=truth,
    )
    return Simulated(crowd, confusion)


def hammers_and_spammers(hammers, spammers, classes, accuracy=0.8) -> np.ndarray:
    """Matrices of annotators who are right with probability `accuracy`, and of others who always say class 0."""
    hammer = np.full((classes, classes), (1 - accuracy) / (classes - 1))
    np.fill_diagonal(hammer, accuracy)
    spammer = np.tile(np.eye(classes)[0], (classes, 1))
    return np.stack([hammer] * hammers + [spammer] * spammers)


def _distinct_annotators(generator, items, annotators, k) -> np.ndarray:
    """`k` different annotators for each item, without an items x annotators array: clashes draw again."""
    chosen = np.sort(generator.integers(annotators, size=(items, k)), axis=1)
    while True:
        clash = (np.diff(chosen, axis=1) == 0).any(1)
        if not clash.any():
            return generator.permuted(chosen, axis=1).ravel()
        if k > annotators // 2:  # clashes would go on for long: shuffle the few annotators instead
            order = generator.permuted(np.tile(np.arange(annotators), (int(clash.sum()), 1)), axis=1)
            chosen[clash] = np.sort(order[:, :k], axis=1)
        else:
            chosen[clash] = np.sort(generator.integers(annotators, size=(int(clash.sum()), k)), axis=1)
