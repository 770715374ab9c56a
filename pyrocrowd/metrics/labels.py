"""Predicted labels and probabilities against the truth."""

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

TIE = 1e-12  # probabilities closer than this are tied
FLOOR = 1e-12  # floor of a probability inside the logarithm of the calibration score


def _known_pairs(truth, predicted, dimensions=(1, 2)):
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if predicted.ndim not in dimensions or truth.shape != predicted.shape[:1]:
        raise ValueError(f"truth has shape {truth.shape} but the prediction {predicted.shape}: give one row per item.")
    if not (truth >= 0).any():
        raise ValueError("No item has a known truth, so there is nothing to score.")
    if predicted.ndim == 2 and truth.max() >= predicted.shape[1]:
        raise ValueError(f"truth holds class {truth.max()} but probs has only {predicted.shape[1]} columns.")
    if not np.isfinite(predicted).all():
        raise ValueError(f"{(~np.isfinite(predicted)).sum()} predictions are not finite: check the fit.")
    return truth[truth >= 0], predicted[truth >= 0]


def hard(predicted):
    return predicted.argmax(1) if predicted.ndim == 2 else predicted


def accuracy(truth, predicted):
    """Mean of 1[argmax p_i = z_i]; ``predicted`` is (N,) labels or (N, C) probabilities (ties to the lowest class)."""
    truth, predicted = _known_pairs(truth, predicted)
    return float(np.mean(hard(predicted) == truth))


def epoch_accuracies(test, validation=None):
    """Accuracies of a run from its (epochs,) histories; say which one you report.

    ``best`` is the maximum over ``test`` (optimistic), ``last`` the final epoch and, given ``validation``, ``selected``
    the test accuracy at the first epoch of best validation accuracy.
    """
    summary = {"best": float(np.max(test)), "last": float(test[-1])}
    if validation is not None:
        if len(validation) != len(test):
            raise ValueError(f"{len(test)} test epochs but {len(validation)} validation epochs: give equally many.")
        summary["selected"] = float(test[int(np.argmax(validation))])
    return summary


def macro_f1(truth, predicted):
    """Mean over the classes seen in truth or prediction of 2 TP / (2 TP + FP + FN); arguments as in `accuracy`."""
    truth, predicted = _known_pairs(truth, predicted)
    predicted = hard(predicted)
    size = max(truth.max(), predicted.max()) + 1
    hits = np.bincount(truth[truth == predicted], minlength=size)
    seen = np.bincount(truth, minlength=size) + np.bincount(predicted, minlength=size)
    return float(np.mean(2 * hits[seen > 0] / seen[seen > 0]))


def expected_accuracy_with_random_ties(truth, probs):
    """Accuracy expected when ties are broken at random: mean of 1[z_i in top_i] / |top_i|."""
    truth, probs = _known_pairs(truth, probs, dimensions=(2,))
    top = probs >= probs.max(1, keepdims=True) - TIE
    return float(np.mean(top[np.arange(len(truth)), truth] / top.sum(1)))


def negative_log_likelihood(truth, probs):
    """Mean of -log p_i[z_i] in nats, with p floored at 1e-12."""
    truth, probs = _known_pairs(truth, probs, dimensions=(2,))
    return float(-np.mean(np.log(np.maximum(probs[np.arange(len(truth)), truth], FLOOR))))


def expected_calibration_error(truth, probs, bins=15):
    """Sum over equal bins of confidence, right-closed, of |n_b| / N * |accuracy_b - mean confidence_b|."""
    truth, probs = _known_pairs(truth, probs, dimensions=(2,))
    if bins < 1:
        raise ValueError(f"bins={bins} must be at least 1.")
    confidence = probs.max(1)
    cell = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(cell, weights=(probs.argmax(1) == truth) - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(truth))


def _one_against_rest(score, truth, probs):
    truth, probs = _known_pairs(truth, probs)
    if probs.ndim == 1:
        probs = np.stack([-probs, probs], 1)
    classes = [1] if probs.shape[1] == 2 else range(probs.shape[1])
    values = [score(truth == c, probs[:, c]) for c in classes if 0 < (truth == c).sum() < len(truth)]
    return float(np.mean(values or np.nan))


def area_under_roc(truth, probs):
    """Area under the ROC curve of (N,) scores of class 1 or (N, C) probs; C > 2: mean over classes against the rest.

    Classes that are never or always true are left out; nan when none remains.
    """
    return _one_against_rest(roc_auc_score, truth, probs)


def mean_average_precision(truth, probs):
    """Mean over classes of the average precision sum_k (recall_k - recall_{k-1}) precision_k; as `area_under_roc`."""
    return _one_against_rest(average_precision_score, truth, probs)
