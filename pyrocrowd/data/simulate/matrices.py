"""Confusion matrices, and labels drawn from them; rows = true class, columns = label."""

from __future__ import annotations

import numpy as np

from pyrocrowd.data.simulate.arguments import recorded
from pyrocrowd.data.simulate.simulated import Simulated
from pyrocrowd.errors import PyrocrowdError


@recorded
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
    from pyrocrowd.data.crowd import Crowd

    truth, confusion = np.asarray(truth), np.asarray(confusion, float)
    annotators, classes = confusion.shape[:2]
    if not 1 <= labels_per_item <= annotators:
        raise PyrocrowdError(f"{labels_per_item} labels per item cannot come from {annotators} different annotators.")
    generator = np.random.default_rng(seed)
    item = np.repeat(np.arange(len(truth)), labels_per_item)
    annotator = distinct_annotators(generator, len(truth), annotators, labels_per_item)
    crowd = Crowd(
        item,
        annotator,
        draw_labels(generator, confusion, annotator, truth[item]),
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


def flipping(target, strength) -> np.ndarray:
    """Matrices that take class c for `target[..., c]` with probability `strength`, and are right otherwise.

    Parameters
    ----------
    target : array of int, shape (..., classes)
        A class that is its own target is never mistaken.

    Returns
    -------
    array, shape (..., classes, classes)
    """
    identity = np.eye(np.shape(target)[-1])
    return (1 - strength) * identity + strength * identity[target]


def random_targets(generator, shape, classes) -> np.ndarray:
    """For every class one of the others, drawn uniformly: shape (*shape, classes)."""
    return (np.arange(classes) + generator.integers(1, classes, size=(*shape, classes))) % classes


def random_pairs(generator, classes) -> np.ndarray:
    """The classes in pairs drawn at random, each the target of the other; an odd class out is its own target."""
    order, target = generator.permutation(classes), np.arange(classes)
    first, second = order[: classes // 2], order[classes - classes // 2 :]
    target[first], target[second] = second, first
    return target


def draw_labels(generator, matrices, which, truth) -> np.ndarray:
    """One label per annotation: `y_n ~ Categorical(matrices[which_n, truth_n])`."""
    thresholds = matrices.cumsum(-1)[which, truth]
    return (generator.random((len(which), 1)) > thresholds).sum(-1).clip(max=matrices.shape[-1] - 1)


def distinct_annotators(generator, items, annotators, k) -> np.ndarray:
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
