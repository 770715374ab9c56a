"""The items that simulated annotators look at: drawn here, or handed in by the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyrocrowd.data.simulate.arguments import whole

if TYPE_CHECKING:
    from pyrocrowd.data.crowd import Crowd

FEWEST_ITEMS = 10  # so that a tenth is at least one


def gaussian_classes(generator, items, classes, dimension, separation) -> tuple[np.ndarray, np.ndarray]:
    """Features `x_i ~ N(mean_{z_i}, I)` and uniform classes `z_i`, with means drawn from `N(0, separation^2 I)`."""
    means = generator.normal(scale=separation, size=(classes, dimension))
    truth = generator.integers(classes, size=items)
    return (means[truth] + generator.normal(size=(items, dimension))).astype(np.float32), truth


def problems_of_given(features, truth, classes) -> list[str]:
    """Every problem of features and truth that the user hands in, a sentence each; none where there are neither."""
    from pyrocrowd.data.features import as_features, check_features

    if features is None and truth is None:
        return []
    if features is None or truth is None:
        return ["features and truth belong together: give both of them or neither."]
    truth = np.asarray(truth)
    if truth.ndim != 1 or truth.dtype.kind not in "iu":
        return ["truth must hold the class of each item as a whole number: 0, 1, 2 ..."]
    problems = check_features(as_features(features), len(truth))
    if len(truth) < FEWEST_ITEMS:
        problems.append(f"truth has {len(truth)} entries, and a simulation needs at least {FEWEST_ITEMS} items.")
    elif truth.min() < 0:
        problems.append(f"truth holds {truth.min()}: every item must have its class.")
    elif not whole(2, classes=classes) and truth.max() >= classes:
        problems.append(f"truth holds class {truth.max()} of classes 0 ... {classes - 1}: say how many classes= has.")
    return problems


def in_splits(generator, items) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The places 0 ... items - 1 shuffled and cut 80 : 10 : 10 into train, valid and test."""
    tenth = items // 10
    train, valid, test = np.split(generator.permutation(items), [items - 2 * tenth, items - tenth])
    return train, valid, test


def unlabelled(crowd: Crowd, features, truth) -> Crowd:
    """Items nobody has labelled, in the classes and annotators of a crowd, with their truth."""
    return crowd.new_items(features)._with(truth=truth)


def split_items(generator, items, classes, dimension, separation, features=None, truth=None):
    """Features and truth of the train, valid and test items, made up or handed in.

    Returns
    -------
    train, valid, test : pairs of arrays
    row : dict
        For data handed in, under `row`, which of their rows these items are, one split after the other; else empty.
    """
    given = features is not None
    if not given:
        features, truth = gaussian_classes(generator, items, classes, dimension, separation)
    features, truth = np.asarray(features), np.asarray(truth, np.int64)
    splits = in_splits(generator, len(truth))
    parts = [(features[rows], truth[rows]) for rows in splits]
    return *parts, {"row": np.concatenate(splits)} if given else {}
