"""Crowds by name: one that comes with the house, and the real ones that lie in a folder beside it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pyrocrowd.data.crowd import Crowd
from pyrocrowd.data.simulate import Simulated, from_confusions

VARIABLE = "PYROCROWD_DATA"


def real(name: str, **options) -> Crowd:
    """One of the real crowds in `$PYROCROWD_DATA` (or `../shared/data`), such as `labelme`.

    Raises
    ------
    FileNotFoundError
        Where there is no such folder.
    """
    return Crowd.read(folder_of(name), **options)


def folder_of(name: str) -> Path:
    """Where a real data set lies."""
    places = [Path(os.environ[VARIABLE])] if VARIABLE in os.environ else []
    places.append(Path("..") / "shared" / "data")
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise FileNotFoundError(f"There is no data set {name}: set {VARIABLE} to the folder that holds it.")


def pictures(name: str) -> dict:
    """A set of pictures in `$PYROCROWD_DATA`, such as `mnist`: arrays x_train, y_train, x_test and y_test.

    Pictures come as rows of numbers in [0, 1].
    """
    with np.load(folder_of(name) / f"{name}.npz") as arrays:
        found = {part: arrays[part] for part in ("x_train", "y_train", "x_test", "y_test")}
    for part in ("x_train", "x_test"):
        found[part] = (found[part].reshape(len(found[part]), -1) / 255).astype(np.float32)
    return found


def digits(items=1500, labels_per_item=3, seed=0) -> Simulated:
    """Handwritten digits (from scikit-learn) labelled by twelve made-up annotators of very different worth.

    Four careful ones, three hasty ones, two who take 4 for 9 and 1 for 7, two who guess, and one who reads 3 and 8 the
    wrong way round. Majority vote fails often enough to be improved upon.
    """
    from sklearn.datasets import load_digits

    pictures = load_digits()
    chosen = np.random.default_rng(seed).permutation(len(pictures.target))[:items]
    careful, hasty = _even(0.9), _even(0.6)
    near_sighted, turned = _even(0.85), _even(0.85)
    near_sighted[[4, 1]] = 0.02
    near_sighted[[4, 4, 1, 1], [9, 4, 7, 1]] = 0.72, 0.12, 0.72, 0.12
    turned[[3, 8]] = turned[[8, 3]]
    guessing = np.full((10, 10), 0.1)
    people = {
        "ada": careful, "ben": careful, "cleo": careful, "dov": careful,
        "eve": hasty, "fay": hasty, "gus": hasty,
        "hal": near_sighted, "ida": near_sighted,
        "jo": guessing, "kim": guessing,
        "lou": turned,
    }  # fmt: skip
    return from_confusions(
        pictures.target[chosen],
        np.stack(list(people.values())),
        labels_per_item,
        seed,
        features=(pictures.data[chosen] / 16).astype(np.float32),
        item_names=np.array([f"digit_{place:04d}" for place in chosen], object),
        annotator_names=np.array(list(people), object),
    )


def _even(accuracy, classes=10) -> np.ndarray:
    """Right with probability `accuracy`, all mistakes alike."""
    return np.full((classes, classes), (1 - accuracy) / (classes - 1)) + np.eye(classes) * (
        accuracy - (1 - accuracy) / (classes - 1)
    )
