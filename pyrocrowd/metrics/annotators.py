"""The labels of a crowd against the truth: who confuses what, how often, and whether they do so together."""

import numpy as np
from scipy.special import entr

from pyrocrowd.metrics.labels import hard
from pyrocrowd.metrics.matrices import row_normalised


def _known(crowd, truth=None):
    """Mask (n,) of the annotations on items of known truth, and the true class (n,) of each annotation's item."""
    truth = crowd.truth if truth is None else hard(_checked_truth(crowd, truth))
    true = np.full(len(crowd.item), -1) if truth is None else np.asarray(truth)[crowd.item]
    if not (true >= 0).any():
        raise ValueError("No annotation lies on an item of known truth: give the crowd a truth first.")
    return true >= 0, true


def _checked_truth(crowd, truth):
    truth = crowd.truth if truth is None else truth
    if truth is None:
        raise ValueError("The crowd carries no truth: pass truth as labels (N,) or probabilities (N, C).")
    truth, shape = np.asarray(truth), (crowd.n_items, crowd.n_classes)
    if truth.shape not in (shape[:1], shape):
        raise ValueError(f"truth has shape {truth.shape}: give labels {shape[:1]} or probabilities {shape}.")
    low, high = (0, np.inf) if truth.ndim == 2 else (-1, crowd.n_classes - 1)
    if not ((truth >= low) & (truth <= high)).all():
        raise ValueError(f"truth must lie between {low} and {high} but reaches from {truth.min()} to {truth.max()}.")
    return truth


def _soft_truth(crowd, truth):
    truth = _checked_truth(crowd, truth)
    return truth if truth.ndim == 2 else (truth[:, None] == np.arange(crowd.n_classes)).astype(float)


def annotator_confusions(crowd, truth=None, empty="uniform"):
    """Confusion matrix of every annotator, count(y_ir = l, z_i = c) / count(r labelled, z_i = c).

    Parameters
    ----------
    truth : (N,) labels, or (N, C) probabilities for soft counts; by default the crowd's own
    empty : what a row without counts becomes, 'uniform' 1/C (CMM) or 'zero' (CCC)

    Returns
    -------
    (R, C, C)
    """
    truth = _soft_truth(crowd, truth)
    counts = np.zeros((crowd.n_annotators, crowd.n_classes, crowd.n_classes))
    np.add.at(counts, (crowd.annotator, crowd.label), truth[crowd.item])  # (R, label, class)
    return row_normalised(counts.swapaxes(1, 2), empty)


def global_confusion(crowd, truth=None, empty="uniform"):
    """Confusion matrix (C, C) of all annotations pooled; arguments as in `annotator_confusions`."""
    counts = np.zeros((crowd.n_classes, crowd.n_classes))
    np.add.at(counts, crowd.label, _soft_truth(crowd, truth)[crowd.item])
    return row_normalised(counts.T, empty)


def noise_rates(crowd):
    """(N.R.1, N.R.2): share of labelled items none of whose labels is correct, share of wrong annotations."""
    known, true = _known(crowd)
    item, right = crowd.item[known], (crowd.label == true)[known]
    saved = np.bincount(item, weights=right, minlength=crowd.n_items) > 0
    labelled = np.bincount(item, minlength=crowd.n_items) > 0
    return float(np.mean(~saved[labelled])), float(np.mean(~right))


def annotator_accuracy(crowd, label=None):
    """Share of correct labels of every annotator: (R,), nan for annotators without an item of known truth.

    ``label`` (n,) stands in for the given labels, for instance those a model predicts.
    """
    known, true = _known(crowd)
    right = ((crowd.label if label is None else label) == true)[known]
    total = np.bincount(crowd.annotator[known], minlength=crowd.n_annotators)
    right = np.bincount(crowd.annotator[known], weights=right, minlength=crowd.n_annotators)
    return np.divide(right, total, out=np.full(crowd.n_annotators, np.nan), where=total > 0)


def mean_annotator_accuracy(crowd):
    """Unweighted mean of `annotator_accuracy` (not the share of correct annotations, which is 1 - N.R.2)."""
    return float(np.nanmean(annotator_accuracy(crowd)))


def annotator_accuracy_error(crowd, predicted, weights=None):
    """Mean over annotators of |accuracy of r's labels - accuracy of the labels the model predicts for r|.

    Parameters
    ----------
    predicted : (n,) labels or (n, C) probabilities, one row per annotation
    weights : (R,), by default equal; ``np.bincount(crowd.annotator)`` gives the share of annotations
    """
    predicted = np.asarray(predicted)
    if len(predicted) != len(crowd.label):
        raise ValueError(f"{len(predicted)} predictions for {len(crowd.label)} annotations: give one per annotation.")
    gap = np.abs(annotator_accuracy(crowd) - annotator_accuracy(crowd, hard(predicted)))
    weights = np.ones(crowd.n_annotators) if weights is None else np.asarray(weights)
    return float(np.average(gap[~np.isnan(gap)], weights=weights[~np.isnan(gap)]))


def common_mistakes(crowd, truth=None):
    """Heat map (C, C): share of active annotators who at least once labelled an item of class c as l; diagonal 0.

    Figure 1 of CoNAL. ``truth``, labels (N,) or probabilities (N, C) of which the likeliest class counts, stands in for
    the crowd's own.
    """
    known, true = _known(crowd, truth)
    made = np.zeros((crowd.n_annotators, crowd.n_classes, crowd.n_classes), bool)
    made[crowd.annotator[known], true[known], crowd.label[known]] = True
    return made.sum(0) * (1 - np.eye(crowd.n_classes)) / len(np.unique(crowd.annotator[known]))


def class_entropy(crowd):
    """Entropy in nats of the pooled labels of the items of each class: (C,), nan for classes without annotations."""
    pooled = global_confusion(crowd, empty="zero")
    return np.where(pooled.sum(1) > 0, entr(pooled).sum(1), np.nan)


def classes_by_weight(crowd, weight, truth=None):
    """Which classes the items of high and of low weight belong to: Figure 10 of CoNAL, where the weight is omega.

    The items are sorted by wbar_i, the mean weight of their annotations, from high to low, and cut into halves:
    share[h, c] = sum_{i in half h} z_i[c] / sum_{i in half h} sum_c' z_i[c'].

    Parameters
    ----------
    weight : (n,) one number per annotation, such as omega_ir or the posterior of the common source
    truth : (N,) labels, or (N, C) probabilities for soft counts; by default the crowd's own

    Returns
    -------
    (2, C) upper half, lower half; the upper one is larger by an item where their number is odd. Items without labels or
    truth are left out, and items of equal weight stay in the order of the crowd.
    """
    weight, truth = np.asarray(weight, float), _soft_truth(crowd, truth)
    if weight.shape != np.shape(crowd.item) or not np.isfinite(weight).all():
        raise ValueError(f"weight has shape {weight.shape}: give a finite number for each of {len(crowd.item)} labels.")
    labels = np.bincount(crowd.item, minlength=crowd.n_items)
    kept = np.flatnonzero((labels > 0) & (truth.sum(1) > 0))
    if len(kept) < 2:
        raise ValueError(f"{len(kept)} items have labels and a known truth: two halves need at least 2.")
    mean = np.bincount(crowd.item, weights=weight, minlength=crowd.n_items)[kept] / labels[kept]
    halves = np.array_split(kept[np.argsort(-mean, kind="stable")], 2)
    return row_normalised(np.stack([truth[half].sum(0) for half in halves]))
