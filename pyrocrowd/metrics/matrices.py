"""Confusion matrices by themselves: how far apart they are, and what they say of an annotator."""

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.special import entr
from scipy.stats import entropy

CLIP = 1e-7  # floor of matrix entries in the JS divergence (Mena and Nanculef 2019, released code)


def as_matrices(*confusions):
    confusions = [np.asarray(confusion, float) for confusion in confusions]
    for confusion in confusions:
        if confusion.ndim < 2 or confusion.shape[-2:] != confusions[0].shape[-1:] * 2 or confusion.shape[-1] < 2:
            raise ValueError(f"Shapes {[c.shape for c in confusions]} are not matrices (..., C, C) of one size C > 1.")
        if not ((confusion >= 0) & (confusion <= 1 + 1e-6)).all():
            raise ValueError("A confusion matrix has entries outside [0, 1]: give rows of probabilities, not counts.")
    return confusions if len(confusions) > 1 else confusions[0]


def row_normalised(counts, empty="uniform"):
    if empty not in ("uniform", "zero"):
        raise ValueError(f"empty={empty!r} is not a way to fill empty rows: choose 'uniform' or 'zero'.")
    total = counts.sum(-1, keepdims=True)
    filler = 1 / counts.shape[-1] if empty == "uniform" else 0.0
    return np.where(total > 0, counts / np.where(total > 0, total, 1), filler)


def js_divergence(first, second):
    """Row-averaged Jensen-Shannon divergence in bits, in [0, 1], not square-rooted: (..., C, C) twice -> (...).

    (1/C) sum_c [KL(P_c || M_c) + KL(Q_c || M_c)] / 2, M = (P + Q) / 2, entries clipped to [1e-7, 1] and rows
    renormalised inside KL. Batch dimensions broadcast.
    """
    first, second = (np.clip(confusion, CLIP, 1) for confusion in as_matrices(first, second))
    middle = (first + second) / 2
    rows = (entropy(first, middle, base=2, axis=-1) + entropy(second, middle, base=2, axis=-1)) / 2
    return np.clip(rows.mean(-1), 0, 1)  # rounding can step below zero


def individual_js(estimated, true, weights=None):
    """I-JS: mean over annotators of JS(estimated_r, true_r); (R, C, C), or one (C, C) for all, against (R, C, C).

    ``weights`` (R,) are equal by default; ``np.bincount(crowd.annotator)`` gives the share of annotations.
    """
    return float(np.average(js_divergence(estimated, true), weights=weights))


def global_js(estimated, true):
    """G-JS: JS of the estimated and the true global matrix, both (C, C)."""
    return float(js_divergence(estimated, true))


def identity_similarity(confusion):
    """I_sim(P) = 1 - JS(P, I): (..., C, C) -> (...)."""
    return 1 - js_divergence(confusion, np.eye(np.shape(confusion)[-1]))


def confusion_entropy(confusion):
    """Mean over rows of -sum_l P[c, l] ln P[c, l], in [0, ln C] nats: (..., C, C) -> (...)."""
    return entr(as_matrices(confusion)).sum(-1).mean(-1)


def norm_f(first, second):
    """Frobenius norm of the difference over C, ||P - Q||_F / C: (..., C, C) twice -> (...)."""
    first, second = as_matrices(first, second)
    return np.sqrt(((first - second) ** 2).sum((-2, -1))) / first.shape[-1]


def cm_error(estimated, true, squared=True):
    """Mean over annotators of ||pi_r - pihat_r||_F^2 / C, in [0, 2] (or, not squared, of the norm / C); (R, C, C)."""
    norm = norm_f(estimated, true)
    return float(np.mean(norm**2) * np.shape(true)[-1] if squared else np.mean(norm))


def skill(confusion, prevalence=None):
    """Trace(P) / C, or sum_c rho_c P[c, c] with ``prevalence`` rho of shape (..., C): (..., C, C) -> (...)."""
    diagonal = np.diagonal(as_matrices(confusion), axis1=-2, axis2=-1)
    return diagonal.mean(-1) if prevalence is None else (diagonal * np.asarray(prevalence)).sum(-1)


def spammer_score(confusion):
    """Mean over l of P[l, l] - mean_{k != l} P[k, l]; 1 good, 0 spammer, < 0 malicious: (..., C, C) -> (...)."""
    confusion = as_matrices(confusion)
    size = confusion.shape[-1]
    return (size * skill(confusion) - confusion.sum((-2, -1)) / size) / (size - 1)


def dominance(confusion):
    """Smallest margin by which a label is likeliest given its own class: (..., C, C) -> (...).

    min_i (P[i, i] - max_{j != i} P[j, i]), in [-1, 1]; see `diagonally_dominant`.
    """
    confusion = as_matrices(confusion)
    others = np.where(np.eye(confusion.shape[-1], dtype=bool), -np.inf, confusion).max(-2)
    return (np.diagonal(confusion, axis1=-2, axis2=-1) - others).min(-1)


def diagonally_dominant(confusion, margin=0.0):
    """Whether P[i, i] > P[j, i] + margin for all j != i: (..., C, C) -> (...) of bool.

    The condition of Tanno et al. (2019, arXiv 1902.03680) on COLUMNS: no other class gets label i as often as class i
    does. It is not the usual one on rows, that class i gets no other label as often as i, and neither implies the
    other. Their Theorem 1 asks it of the mean over annotators, ``confusion.mean(0)``, and not of each one: among the
    matrices that fulfil it and explain the labels with some classifier, the true ones have the smallest mean trace.
    """
    return dominance(confusion) > margin


def bias_score(confusion):
    """Largest minus median column mean, max_l pbar_l - median_l pbar_l: (..., C, C) -> (...)."""
    share = as_matrices(confusion).mean(-2)
    return share.max(-1) - np.median(share, axis=-1)


def biased_class(confusion):
    """Label an annotator favours, the argmax over l of the column mean pbar_l: (..., C, C) -> (...)."""
    return as_matrices(confusion).mean(-2).argmax(-1)


def annotator_distance(confusions):
    """Mean squared entry difference of every pair of annotators, ||P_r - P_s||_F^2 / C^2: (R, C, C) -> (R, R)."""
    confusions = as_matrices(confusions)
    flat = confusions.reshape(len(confusions), -1)
    return squareform(pdist(flat, "sqeuclidean")) / flat.shape[1]


def group_inertia(groups, distance=js_divergence):
    """Mean over pairs of groups (M, C, C) of JS, or of another ``distance`` such as `norm_f`; 0 for one group."""
    groups = as_matrices(groups)
    left, right = np.triu_indices(len(groups), 1)
    return float(np.mean(distance(groups[left], groups[right]))) if len(left) else 0.0
