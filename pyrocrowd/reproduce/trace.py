"""The tables and figures of trace-regularised confusion.

Tanno, Saeedi, Sankaranarayanan, Alexander, Silberman, "Learning From Noisy Labels By Regularized Estimation Of
Annotator Confusion", CVPR 2019, arXiv 1902.03680. The figures on MNIST print no numbers; the CIFAR-10 table does, for
a convolutional network trained from scratch, where ours is a layer of 128 on frozen features.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import pandas as pd
import torch

from pyrocrowd import metrics
from pyrocrowd.data import sets, simulate
from pyrocrowd.errors import PyrocrowdWarning
from pyrocrowd.infer.run import fit
from pyrocrowd.infer.settings import MAP
from pyrocrowd.nets import backbone
from pyrocrowd.reproduce import Experiment
from pyrocrowd.reproduce.train import ACCURACY, LAST

CM_ERROR = "CM error x 100"
REGIMES = ("dense", "one label")

# Tanno et al. (2019), CIFAR-10: regime -> method -> accuracy and CM error x 100, three runs.
CIFAR = {
    "dense": {"trace": ("81.23 ± 0.21", "0.72 ± 0.01"), "no trace": ("80.29 ± 0.65", "1.37 ± 0.12")},
    "one label": {"trace": ("77.65 ± 0.31", "1.22 ± 0.01"), "no trace": ("76.31 ± 0.49", "1.46 ± 0.27")},
}
SKILLS = (0.25, 0.3, 0.35, 0.4, 0.5, 0.7)
WEIGHTS = {"trace": 0.01, "no trace": 0.0, "lambda 0.001": 0.001, "lambda 0.1": 0.1}
ENGINE = {"epochs": 15, "batch_size": 256, "patience": 0}
MNIST_RECIPE = {**ENGINE, "learning_rate": 0.01, "dropout": 0.5}
CIFAR_RECIPE = {**ENGINE, "learning_rate": 0.005, "dropout": 0.2}


def mnist() -> list[Experiment]:
    """Accuracy and CM error of five pairwise flippers, two of whom share a mistake, against their skill."""
    return [
        _experiment(
            f"MNIST {regime} skill {skill:g}",
            method,
            _flipped,
            {"skill": skill, "dense": regime == "dense"},
            MNIST_RECIPE,
        )
        for regime in REGIMES
        for skill in SKILLS
        for method in ("trace", "no trace", "oracle")
    ]


def cifar() -> list[Experiment]:
    """The four annotators on frozen features of CIFAR-10, with several weights of the trace, and on clean labels."""
    return [
        _experiment(f"CIFAR-10 {regime}", method, _four, {"dense": regime == "dense"}, CIFAR_RECIPE, CIFAR[regime])
        for regime in REGIMES
        for method in (*WEIGHTS, "oracle", "clean labels")
    ]


def _experiment(dataset, method, make, noise, recipe, published=None):
    def run(seed):
        made, test_features, test_truth = make(**noise, seed=seed)
        crowd, options = made.crowd, {"lam": WEIGHTS.get(method, 0.0)}
        if method == "oracle":
            options["oracle"] = made.confusion
        elif method == "clean labels":
            crowd, options["oracle"] = _clean(crowd), np.eye(crowd.n_classes)[None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PyrocrowdWarning)  # counted below instead
            engine = {name: value for name, value in recipe.items() if name != "dropout"}
            torch.manual_seed(seed)
            network = backbone("mlp", crowd, dropout=recipe["dropout"])
            result = fit("trace", crowd, MAP(**engine), seed=seed, net=network, **options)
        figures = {ACCURACY: 100 * metrics.accuracy(test_truth, result.predict_proba(test_features))}
        if method in WEIGHTS:
            found = result.confusion().values
            figures[CM_ERROR] = 100 * metrics.cm_error(found, made.confusion)
            figures["dominance of the mean matrix"] = metrics.dominance(found.mean(0))
            figures["fits that warn"] = len(result.notes["doubts"])
        return {(name, LAST): float(value) for name, value in figures.items()}

    printed = dict(zip([(ACCURACY, LAST), (CM_ERROR, LAST)], (published or {}).get(method, ()), strict=False))
    return Experiment(dataset, method, run, {"noise": noise, "recipe": recipe, "weights": WEIGHTS}, printed)


def _flipped(skill, dense, seed):
    """MNIST, labelled by the same five flippers for every seed, and skill: their targets are those of seed 0."""
    pictures = _pictures()
    matrices = simulate.pairwise_flippers(5, 10, skill, shared=2, seed=0)
    made = _labelled(pictures["x_train"], pictures["y_train"], matrices, dense, seed)
    return made, pictures["x_test"], pictures["y_test"].astype(int)


def _four(dense, seed):
    features, truth, test_features, test_truth = _frozen()
    return _labelled(features, truth, simulate.four_annotators(10, seed=0), dense, seed), test_features, test_truth


def _labelled(features, truth, matrices, dense, seed):
    labels_per_item = len(matrices) if dense else 1
    return simulate.from_confusions(truth.astype(int), matrices, labels_per_item, seed, features=features)


def _clean(crowd):
    """The same items, labelled right by one person."""
    items = np.arange(crowd.n_items)
    return crowd._with(
        item=items, annotator=np.zeros_like(items), label=crowd.truth, annotator_names=np.array(["truth"], object)
    )


@lru_cache(maxsize=1)
def _pictures():
    return sets.pictures("mnist")


@lru_cache(maxsize=1)
def _frozen():
    """Frozen features and classes of the train and the test images of CIFAR-10."""
    folder, found = sets.folder_of("cifar10n"), []
    for split, table in (("train", "truth.csv"), ("test", "truth_test.csv")):
        found.append(np.load(folder / f"features_{split}.npy").astype(np.float32))
        found.append(pd.read_csv(folder / table).sort_values("task")["label"].to_numpy())
    return found
