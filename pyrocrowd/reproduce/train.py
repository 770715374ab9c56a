"""One training run on a real data set, watched epoch by epoch: the figures of a neural paper's table."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pyrocrowd.data import sets
from pyrocrowd.infer.run import fit
from pyrocrowd.infer.settings import MAP
from pyrocrowd.reproduce import Experiment

ACCURACY = "test accuracy"
LAST, BEST, SELECTED = "last epoch", "best epoch on the test set (optimistic)", "best epoch on the clean validation set"


def training(dataset, method, folder, model, engine: dict, hyper_parameters: dict, published=None, selection=SELECTED):
    """An experiment that trains a model on the train split of a folder and reports test accuracy in percent.

    Parameters
    ----------
    dataset, method : str
        As they stand in the table.
    folder : str
        The data set's, with a test split and perhaps a validation split.
    model : str
    engine : settings of MAP
    hyper_parameters : of the model
    published : str, optional
        What the paper printed, for a state selected by `selection`.
    """

    def run(seed):
        crowd, splits = _read(folder)
        watched = MAP(**engine, validation=splits.get("valid"), test=splits["test"])
        history = fit(model, crowd, watched, seed=seed, **hyper_parameters).history
        test = 100 * np.asarray(history["test_accuracy"])
        figures = {(ACCURACY, LAST): test[-1], (ACCURACY, BEST): test.max()}
        if "validation_accuracy" in history:
            figures = {(ACCURACY, SELECTED): test[np.argmax(history["validation_accuracy"])], **figures}
        return figures

    settings = {"model": model, "engine": engine, "hyper_parameters": hyper_parameters}
    return Experiment(dataset, method, run, settings, {(ACCURACY, selection): published})


@lru_cache(maxsize=2)
def _read(folder):
    crowd = sets.real(folder)
    beside = [split for split in ("valid", "test") if (sets.folder_of(folder) / f"features_{split}.npy").exists()]
    return crowd, {split: sets.real(folder, split=split) for split in beside}
