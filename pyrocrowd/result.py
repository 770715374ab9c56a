"""`Fit`: what was learned, with the names back. Labels, annotators, posteriors, predictions for new items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
import xarray as xr
from scipy.stats import beta

from pyrocrowd import metrics, zoo
from pyrocrowd.data import Crowd
from pyrocrowd.errors import PyrocrowdError, did_you_mean
from pyrocrowd.infer.exact import explain_crowd
from pyrocrowd.infer.run import (
    MOST_CELLS,
    Learned,
    bind,
    draw_shape,
    evaluate,
    joint_twin,
    label_confusions,
    restore_weights,
    workspace,
)
from pyrocrowd.progress import progress_bar

DRAWS_FOR_NEW_ITEMS = 50
ITEMS_AT_ONCE = 4096
SMOOTHING = 1e-6  # of matrices that must have no zeros


class Fit:
    """A fitted model: the same for every model and engine.

    Attributes
    ----------
    crowd : Crowd
        What was fitted.
    truth : array, shape (n_items, n_classes)
        Posterior probability of each class for each item.
    draws : dict of array, shape (chain, draw, ...)
        Posterior draws of the continuous sites; one chain with one draw for a point estimate.
    marginals : dict of array
        Posterior of every other enumerated site, (items or annotations, values).
    noted : dict of array
        What the model recorded for every item or annotation, averaged over the draws, (items or annotations, ...).
    losses : list of float
        The engine's loss per iteration, smaller is better.
    log_likelihood : float
        Log-likelihood of the labels, averaged over the draws.
    history, notes : dict
        What was watched along the way; whether it converged, why it stopped and what selected the state that was kept.
    """

    def __init__(
        self,
        *,
        model,
        hyper_parameters,
        engine,
        seed,
        crowd: Crowd,
        anatomy,
        weights: dict,
        learned: Learned,
        truth,
        marginals: dict,
        noted: dict,
        pointwise,
        log_likelihood,
        recorded: dict,
        wall_time: float,
        bound=None,
    ):
        self.model, self.hyper_parameters, self.engine, self.seed = model, hyper_parameters, engine, seed
        self.crowd, self.anatomy, self.weights, self.wall_time = crowd, anatomy, weights, wall_time
        self.truth, self.marginals, self.noted, self.pointwise = truth, marginals, noted, pointwise
        self.losses, self.history = learned.losses, learned.history
        self.stats, self.notes = learned.stats, learned.notes
        self.draws = {name: _numpy(value) for name, value in learned.draws.items()} | recorded
        self.log_likelihoods = log_likelihood
        self._bound, self._was_loaded = bound, bound is None

    # ---------------------------------------------------------------- labels

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.mean())

    def predict_proba(self, X=None) -> np.ndarray:
        """Probability of each class: for the fitted items, or for new ones with features `X`.

        Parameters
        ----------
        X : array, tensor or Dataset with one row per new item, optional
            Features; the model must have a classifier, that is, read `crowd.features`.

        Returns
        -------
        array, shape (items, classes)
            In the order of `crowd.class_names`.
        """
        return self.truth if X is None else self._predict_new(X)

    def predict(self, X=None) -> np.ndarray:
        """The likeliest class of each item, by name."""
        return self.crowd.class_names[self.predict_proba(X).argmax(-1)]

    def labels(self) -> pd.DataFrame:
        """One row per item: its label, the confidence in it, and a probability per class."""
        return label_table(self.crowd.item_names, self.crowd.class_names, self.truth)

    def annotations(self) -> pd.DataFrame:
        """One row per label: who gave it to what, the chance that it is right, and what the model says of it alone.

        The latter are the posterior of a discrete site of the annotations, such as the noise `source` of CoNAL (of its
        value 1 where there are two, else a column for each), and what else the model records of a label (its `omega`).
        """
        table = self.crowd.to_frame()
        table["probability_right"] = self.truth[self.crowd.item, self.crowd.label]
        for name, probability in self.marginals.items():
            if self.anatomy.enumerated[name] == "annotations":
                values = range(probability.shape[1])
                columns = {name: 1} if len(values) == 2 else {f"{name}_{value}": value for value in values}
                table = table.assign(**{column: probability[:, value] for column, value in columns.items()})
        notes = [name for name, place in self.anatomy.noted.items() if place == "annotations"]
        return table.assign(**{name: self.noted[name] for name in notes if self.noted[name].ndim == 1})

    # ---------------------------------------------------------------- annotators

    def confusion(self) -> xr.DataArray:
        """Confusion matrices, rows = true class: `fit.confusion().sel(annotator="ann_3")`; means over the draws.

        From the site `confusion` where the model has one for every annotator; else the chance of each label given the
        truth, averaged over the items that the annotator labelled. A model without a true class has no matrices: there
        the labels are counted against its class probabilities.
        """
        matrices = self._confusion_draws()
        values = self._counted() if matrices is None else matrices.mean((0, 1))
        names = self.crowd.class_names
        coords = {"annotator": self.crowd.annotator_names, "truth": names, "label": names}
        return xr.DataArray(values, dims=("annotator", "truth", "label"), coords=coords, name="confusion")

    def pair_confusion(self, items=None, annotators=None, X=None) -> xr.DataArray:
        """Confusion matrix of every annotator for every single item: `P(label | truth, item, annotator)`.

        Parameters
        ----------
        items, annotators : sequences of names, optional
            Default: all of them; the result has a matrix for each combination.
        X : array, tensor or Dataset, optional
            Features of new items instead. A run that was loaded from disk needs it, as it does not keep the features.

        Returns
        -------
        xarray.DataArray, dimensions item, annotator, truth, label
            Means over the draws, all noise sources summed out.
        """
        if X is None and self._was_loaded and self.anatomy.reads_features:
            raise PyrocrowdError("A saved run does not keep the features of its items: give them as X.")
        crowd = self.crowd if X is None else self._new_items(X)
        item = np.arange(crowd.n_items) if items is None else _places(items, crowd.item_names, "item")
        people = np.arange(crowd.n_annotators)
        people = people if annotators is None else _places(annotators, crowd.annotator_names, "annotator")
        pairs = crowd.pairs(np.repeat(item, len(people)), np.tile(people, len(item)))
        total = sum(
            _numpy(label_confusions(joint_twin(model, self.anatomy), pairs, values, self.anatomy))
            for model, values in self._draws_to_ask(pairs.device, "confusions")
        )
        names = crowd.class_names
        total = total.reshape(len(item), len(people), len(names), len(names))
        coords = {
            "item": crowd.item_names[item],
            "annotator": crowd.annotator_names[people],
            "truth": names,
            "label": names,
        }
        return xr.DataArray(total / total.sum(-1, keepdims=True), coords, tuple(coords), name="pair_confusion")

    def minimax_bound(self, prior=None, per_item=False) -> float:
        """Lower bound on the error rate of the best possible way to label these items, Theorem 1 of CoNAL.

        See `metrics.minimax_bound`. `prior` (items, classes) is what is known of each item before its labels, by
        default how frequent the classes are. A model without a common matrix counts as one whose labels never follow
        it. Zeros in the matrices are smoothed.
        """
        individual = self._mean("individual", self.confusion().values)
        common = self._mean("common", individual.mean(0))
        prior = np.broadcast_to(self.truth.mean(0), self.truth.shape) if prior is None else prior
        smooth = [matrix + SMOOTHING for matrix in (common, individual)]
        smooth = [matrix / matrix.sum(-1, keepdims=True) for matrix in smooth]
        return metrics.minimax_bound(self.crowd, prior, *smooth, self.noted.get("omega", 0.0), per_item=per_item)

    def _mean(self, name, otherwise) -> np.ndarray:
        return self.draws[name].mean((0, 1)) if name in self.draws else otherwise

    def annotators(self, interval=0.9) -> pd.DataFrame:
        """One row per annotator: number of labels, skill with an interval, most frequent confusion.

        Skill is the probability to label an item of this crowd right, `sum_c P(c) confusion[c, c]`; for models without
        confusion matrices, the expected share of right labels. The interval holds the given share of the posterior
        draws; after a point estimate (EM, MAP) it is that of as many coin flips as the annotator gave labels, and so
        leaves out the doubt about the truth itself.
        """
        crowd, draws = self.crowd, self._confusion_draws()
        n_labels = crowd.labels_per_annotator
        tails = (1 - interval) / 2, (1 + interval) / 2
        if draws is None:
            right = np.bincount(crowd.annotator, self.truth[crowd.item, crowd.label], minlength=crowd.n_annotators)
            skill = np.where(n_labels > 0, right / np.maximum(n_labels, 1), 1 / crowd.n_classes)
        else:
            skills = metrics.skill(draws, self.truth.mean(0)).reshape(-1, crowd.n_annotators)
            skill = skills.mean(0)
        if draws is not None and len(skills) > 1:
            low, high = np.quantile(skills, tails, axis=0)
        else:
            low, high = (beta.ppf(tail, 1 + skill * n_labels, 1 + (1 - skill) * n_labels) for tail in tails)
            low, high = np.minimum(low, skill), np.maximum(high, skill)
        confuses, rate = self._worst_confusions()
        return pd.DataFrame(
            {
                "annotator": crowd.annotator_names,
                "n_labels": n_labels,
                "skill": skill,
                "skill_low": low,
                "skill_high": high,
                "most_frequent_confusion": confuses,
                "confusion_rate": rate,
            }
        )

    def _worst_confusions(self):
        """The most frequent mistake of every annotator, in words, and how often it happens given the true class."""
        crowd, classes = self.crowd, self.crowd.n_classes
        if crowd.n_annotators * classes**2 <= MOST_CELLS:
            counts = _numpy(crowd.to("cpu").count(torch.as_tensor(self.truth))).reshape(-1)
            cell = np.arange(len(counts))
        else:  # many classes: only the cells that occur, with the likeliest class as the truth
            cell = (crowd.annotator * classes + self.truth.argmax(-1)[crowd.item]) * classes + crowd.label
            cell, counts = np.unique(cell, return_counts=True)
        row, given = np.divmod(cell, classes)
        who, true = np.divmod(row, classes)
        rows = np.bincount(row, counts, minlength=crowd.n_annotators * classes)
        order = np.lexsort((-cell, np.where(true == given, -1.0, counts), who))  # the last is the worst
        last = np.append(np.flatnonzero(np.diff(who[order])), len(order) - 1) if len(order) else order
        worst = np.zeros(crowd.n_annotators, int)
        worst[who[order[last]]] = order[last]
        seen = np.zeros(crowd.n_annotators, bool)
        seen[who[order[last]]] = (counts[order[last]] >= 0.5) & (true != given)[order[last]]
        names = crowd.class_names.astype(str).astype(object)
        confuses = np.where(seen, names[true[worst]] + " -> " + names[given[worst]], "")
        return confuses, np.where(seen, counts[worst] / np.maximum(rows[row[worst]], 1e-12), 0.0)

    def _confusion_draws(self):
        draws = self.draws.get("confusion")
        shape = (self.crowd.n_annotators, self.crowd.n_classes, self.crowd.n_classes)
        return draws if draws is not None and draws.shape[2:] == shape else None

    def _counted(self):
        if self.crowd.n_annotators * self.crowd.n_classes**2 > MOST_CELLS:
            raise PyrocrowdError("There are too many classes for the matrices of all annotators: use pair_confusion.")
        return metrics.annotator_confusions(self.crowd, self.truth)

    # ---------------------------------------------------------------- figures

    def metrics(self) -> dict:
        """Every figure of the run; accuracy, calibration and the like only where truth is known."""
        votes = metrics.soft_vote(self.crowd)
        changed = self.truth.argmax(-1) != votes.argmax(-1)
        figures = {
            "log_likelihood": self.log_likelihood,
            "loss": float(self.losses[-1]),
            "mean_confidence": float(self.truth.max(-1).mean()),
            "changed_against_majority_vote": float(changed[self.crowd.labels_per_item > 0].mean()),
        }
        known = self.crowd.truth
        if known is not None and (known >= 0).any():
            figures["accuracy"] = metrics.accuracy(known, self.truth)
            figures["accuracy_of_majority_vote"] = metrics.accuracy(known, votes)
            figures["negative_log_likelihood"] = metrics.negative_log_likelihood(known, self.truth)
            figures["expected_calibration_error"] = metrics.expected_calibration_error(known, self.truth)
        return figures

    def to_arviz(self):
        """The posterior as ArviZ has it: an `InferenceData` (ArviZ 0.x) or a `DataTree` (1.x), names as coordinates."""
        from pyrocrowd.posterior import to_arviz

        return to_arviz(self)

    # ---------------------------------------------------------------- keep and look

    def save(self, folder, force=False) -> Path:
        """Write the run to a folder; `pyrocrowd.load(folder)` reads it back, here or on another machine."""
        from pyrocrowd.store import save

        return save(self, folder, force)

    def __repr__(self) -> str:
        figures = self.metrics()
        accuracy = f", accuracy {figures['accuracy']:.3f}" if "accuracy" in figures else ""
        return (
            f"Fit of {self.model.name} by {self.engine.name.upper()} to {self.crowd.n_annotations:,} labels: "
            f"log-likelihood {self.log_likelihood:.2f}{accuracy}, {self.notes.get('stopped', 'done')} "
            f"after {len(self.losses):,} iterations in {self.wall_time:.1f} s"
        )

    def _repr_html_(self) -> str:
        rows = {"model": self.model.name, "engine": self.engine.name, **self.metrics(), "wall time, s": self.wall_time}
        rows = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in rows.items()}
        table = pd.Series(rows, dtype=object)
        return table.to_frame().to_html(header=False)

    # ---------------------------------------------------------------- new items

    def _predict_new(self, X) -> np.ndarray:
        new, total, asked = self._new_items(X), 0.0, 0
        for model, values in self._draws_to_ask(new.device, "predict"):
            found = explain_crowd(model, new, values, self.anatomy, batch_size=ITEMS_AT_ONCE)
            total, asked = total + _numpy(found.posterior["truth"]), asked + 1
        return total / asked

    def _draws_to_ask(self, device, title):
        """The learned model with some of its draws, one after another, for questions about things it has not seen."""
        chains, count = draw_shape(self.draws)
        chosen = np.unique(np.linspace(0, chains * count - 1, min(DRAWS_FOR_NEW_ITEMS, chains * count)).astype(int))
        with workspace(device, self.engine), torch.no_grad(), progress_bar(title, len(chosen)) as advance:
            model, like = self._ready_model(), dict(device=device, dtype=torch.get_default_dtype())
            for place in chosen:
                chain, draw = divmod(place, count)
                values = {name: torch.as_tensor(self.draws[name][chain, draw], **like) for name in self.anatomy.latent}
                yield model, values
                advance()

    def _new_items(self, X):
        self._check_new(X)
        return self.crowd.new_items(X)

    def _check_new(self, X):
        if not self.anatomy.reads_features:
            raise PyrocrowdError(
                f"{self.model.name} has no classifier, so it cannot label items by their features; it labels the items "
                "of its crowd."
            )
        if self.anatomy.local:
            raise PyrocrowdError(f"{self.model.name} has values of each item's own and cannot label new items.")
        shape = tuple(X.shape[1:]) if hasattr(X, "shape") else None
        if shape is not None and shape != self.crowd.feature_shape:
            raise PyrocrowdError(f"The features have shape {shape} where the fit had {self.crowd.feature_shape}.")

    def _ready_model(self):
        """The model with its learned weights, built anew after a load."""
        if self._bound is None:
            self._bound = bind(zoo.find(self.model), self.crowd, self.hyper_parameters)
        restore_weights(self._bound, self.weights)
        evaluate(self._bound)
        if isinstance(self._bound, torch.nn.Module):  # the caller's precision may have changed since the fit
            self._bound.to(self.crowd.device, torch.get_default_dtype())
        return self._bound


def _places(names, known, what) -> np.ndarray:
    """Where each name stands among the known ones."""
    place = {name: index for index, name in enumerate(known.tolist())}
    strange = [name for name in names if name not in place]
    if strange:
        raise PyrocrowdError(f"The fit knows no {what} {strange[0]!r}.{did_you_mean(str(strange[0]), map(str, place))}")
    return np.array([place[name] for name in names], int)


def label_table(item_names, class_names, probabilities) -> pd.DataFrame:
    """Columns item, label, confidence, then one per class; a class that is called like one of these is marked."""
    columns = {
        "item": item_names,
        "label": class_names[probabilities.argmax(-1)],
        "confidence": probabilities.max(-1),
    }
    for place, name in enumerate(class_names):
        column = str(name)
        while column in columns:
            column = f"class {column}"
        columns[column] = probabilities[:, place]
    return pd.DataFrame(columns)


def _numpy(value) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
