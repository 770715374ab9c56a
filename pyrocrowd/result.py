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
from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.infer.exact import explain_crowd
from pyrocrowd.infer.run import Learned, bind, draw_shape, evaluate, restore_weights, workspace
from pyrocrowd.progress import progress_bar

DRAWS_FOR_NEW_ITEMS = 50
ITEMS_AT_ONCE = 4096


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
        self._bound = bound

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
        wrong = _numpy(crowd.to("cpu").count(torch.as_tensor(self.truth))).copy()
        rows = np.maximum(wrong.sum(-1), 1e-12)
        np.einsum("rcc->rc", wrong)[:] = 0
        worst = wrong.reshape(crowd.n_annotators, -1).argmax(-1)
        true, given = np.divmod(worst, crowd.n_classes)
        who = np.arange(crowd.n_annotators)
        seen = wrong[who, true, given] >= 0.5
        names = crowd.class_names.astype(str).astype(object)
        confuses = np.where(seen, names[true] + " -> " + names[given], "")
        rate = np.where(seen, wrong[who, true, given] / rows[who, true], 0.0)
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

    def _confusion_draws(self):
        draws = self.draws.get("confusion")
        shape = (self.crowd.n_annotators, self.crowd.n_classes, self.crowd.n_classes)
        return draws if draws is not None and draws.shape[2:] == shape else None

    def _counted(self):
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

    @torch.no_grad()
    def _predict_new(self, X) -> np.ndarray:
        self._check_new(X)
        new = self.crowd.new_items(X)
        chains, count = draw_shape(self.draws)
        chosen = np.unique(np.linspace(0, chains * count - 1, min(DRAWS_FOR_NEW_ITEMS, chains * count)).astype(int))
        total = np.zeros((new.n_items, new.n_classes))
        with workspace(new.device, self.engine), progress_bar("predict", len(chosen)) as advance:
            model = self._ready_model()
            for place in chosen:
                chain, draw = divmod(place, count)
                like = dict(device=new.device, dtype=torch.get_default_dtype())
                values = {name: torch.as_tensor(self.draws[name][chain, draw], **like) for name in self.anatomy.latent}
                found = explain_crowd(model, new, values, self.anatomy, batch_size=ITEMS_AT_ONCE)
                total += _numpy(found.posterior["truth"])
                advance()
        return total / len(chosen)

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
