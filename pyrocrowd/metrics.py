"""The judging room: plain numpy arrays enter, plain numbers leave; no model, no engine and no torch.

Conventions shared by every function (C classes, R annotators, N items, n annotations):

- ``crowd``: any object with integer arrays ``item``, ``annotator``, ``label`` of shape (n,), integers ``n_items``,
  ``n_annotators``, ``n_classes``, and ``truth`` of shape (N,), -1 where unknown, or None. Annotations on items of
  unknown truth are left out wherever the truth is needed.
- ``truth``: (N,) true classes, -1 = unknown and left out. ``probs``: (N, C) class probabilities.
- ``confusion``: (..., C, C), row = true class, column = given label. Leading dimensions are batches.
"""

from types import SimpleNamespace

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist, squareform
from scipy.special import entr
from scipy.stats import entropy, rankdata
from sklearn.metrics import adjusted_rand_score, average_precision_score, roc_auc_score

CLIP = 1e-7  # floor of matrix entries in the JS divergence (Mena and Nanculef 2019, released code)
TIE = 1e-12  # probabilities closer than this are tied
FLOOR = 1e-12  # floor of a probability inside the logarithm of the calibration score


# ---------------------------------------------------------------- predictions against the truth
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


def _hard(predicted):
    return predicted.argmax(1) if predicted.ndim == 2 else predicted


def accuracy(truth, predicted):
    """Mean of 1[argmax p_i = z_i]; ``predicted`` is (N,) labels or (N, C) probabilities (ties to the lowest class)."""
    truth, predicted = _known_pairs(truth, predicted)
    return float(np.mean(_hard(predicted) == truth))


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
    predicted = _hard(predicted)
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


# ---------------------------------------------------------------- the crowd itself
def _known(crowd):
    """Mask (n,) of the annotations on items of known truth, and the true class (n,) of each annotation's item."""
    true = np.full(len(crowd.item), -1) if crowd.truth is None else np.asarray(crowd.truth)[crowd.item]
    if not (true >= 0).any():
        raise ValueError("No annotation lies on an item of known truth: give the crowd a truth first.")
    return true >= 0, true


def _votes(crowd):
    cells = np.bincount(crowd.item * crowd.n_classes + crowd.label, minlength=crowd.n_items * crowd.n_classes)
    return cells.reshape(crowd.n_items, crowd.n_classes).astype(float)


def _row_normalised(counts, empty="uniform"):
    if empty not in ("uniform", "zero"):
        raise ValueError(f"empty={empty!r} is not a way to fill empty rows: choose 'uniform' or 'zero'.")
    total = counts.sum(-1, keepdims=True)
    filler = 1 / counts.shape[-1] if empty == "uniform" else 0.0
    return np.where(total > 0, counts / np.where(total > 0, total, 1), filler)


def soft_vote(crowd):
    """Share of each label among the item's annotations, r_i[c] / sum r_i: (N, C); uniform for items without labels."""
    return _row_normalised(_votes(crowd))


def hard_vote(crowd):
    """One-hot (N, C) of the most frequent label, ties (and items without labels) to the lowest class index."""
    return np.eye(crowd.n_classes)[_votes(crowd).argmax(1)]


def _soft_truth(crowd, truth):
    truth = crowd.truth if truth is None else truth
    if truth is None:
        raise ValueError("The crowd carries no truth: pass truth as labels (N,) or probabilities (N, C).")
    truth, shape = np.asarray(truth), (crowd.n_items, crowd.n_classes)
    if truth.shape not in (shape[:1], shape):
        raise ValueError(f"truth has shape {truth.shape}: give labels {shape[:1]} or probabilities {shape}.")
    low, high = (0, np.inf) if truth.ndim == 2 else (-1, crowd.n_classes - 1)
    if not ((truth >= low) & (truth <= high)).all():
        raise ValueError(f"truth must lie between {low} and {high} but reaches from {truth.min()} to {truth.max()}.")
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
    return _row_normalised(counts.swapaxes(1, 2), empty)


def global_confusion(crowd, truth=None, empty="uniform"):
    """Confusion matrix (C, C) of all annotations pooled; arguments as in `annotator_confusions`."""
    counts = np.zeros((crowd.n_classes, crowd.n_classes))
    np.add.at(counts, crowd.label, _soft_truth(crowd, truth)[crowd.item])
    return _row_normalised(counts.T, empty)


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
    gap = np.abs(annotator_accuracy(crowd) - annotator_accuracy(crowd, _hard(predicted)))
    weights = np.ones(crowd.n_annotators) if weights is None else np.asarray(weights)
    return float(np.average(gap[~np.isnan(gap)], weights=weights[~np.isnan(gap)]))


def common_mistakes(crowd):
    """Heat map (C, C): share of active annotators who at least once labelled an item of class c as l; diagonal 0."""
    known, true = _known(crowd)
    made = np.zeros((crowd.n_annotators, crowd.n_classes, crowd.n_classes), bool)
    made[crowd.annotator[known], true[known], crowd.label[known]] = True
    return made.sum(0) * (1 - np.eye(crowd.n_classes)) / len(np.unique(crowd.annotator[known]))


def class_entropy(crowd):
    """Entropy in nats of the pooled labels of the items of each class: (C,), nan for classes without annotations."""
    pooled = global_confusion(crowd, empty="zero")
    return np.where(pooled.sum(1) > 0, entr(pooled).sum(1), np.nan)


def krippendorff_alpha(crowd):
    """Nominal alpha = 1 - D_o / D_e over the items with at least two labels; nan without such items or a second class.

    With counts r_i[c], m_i = sum_c r_i[c] and n = sum_i m_i: D_o = sum_i (m_i^2 - sum_c r_i[c]^2) / (m_i - 1) / n
    and D_e = (n^2 - sum_c (sum_i r_i[c])^2) / (n (n - 1)).
    """
    votes = _votes(crowd)
    votes = votes[votes.sum(1) > 1]
    size, total = votes.sum(1), votes.sum()
    if (votes.sum(0) > 0).sum() < 2:
        return float("nan")
    observed = ((size**2 - (votes**2).sum(1)) / (size - 1)).sum() / total
    expected = (total**2 - (votes.sum(0) ** 2).sum()) / (total * (total - 1))
    return float(1 - observed / expected)


def redundancy_curve(crowd, redundancies, aggregate=soft_vote, runs=50, seed=0):
    """Accuracy, ties at random, when every item keeps at most k of its labels, drawn without replacement.

    Parameters
    ----------
    redundancies : sequence of K positive integers k
    aggregate : function from a thinned crowd to probs (N, C)
    runs, seed : number of random thinnings per k, and their seed

    Returns
    -------
    (K, 2) mean over runs and its standard error (nan for a single run)
    """
    random, scores = np.random.default_rng(seed), np.empty((len(redundancies), runs))
    first = np.concatenate([[0], np.cumsum(np.bincount(crowd.item, minlength=crowd.n_items))])
    sizes = {name: getattr(crowd, name) for name in ("n_items", "n_annotators", "n_classes", "truth")}
    for row, run in np.ndindex(scores.shape):
        order = np.lexsort((random.random(len(crowd.item)), crowd.item))
        kept = order[np.arange(len(order)) - first[crowd.item[order]] < redundancies[row]]
        table = {name: getattr(crowd, name)[kept] for name in ("item", "annotator", "label")}
        probs = aggregate(SimpleNamespace(**table, **sizes))
        scores[row, run] = expected_accuracy_with_random_ties(crowd.truth, probs)
    error = scores.std(1, ddof=1) / np.sqrt(runs) if runs > 1 else np.full(len(scores), np.nan)
    return np.stack([scores.mean(1), error], 1)


# ---------------------------------------------------------------- confusion matrices
def _matrices(*confusions):
    confusions = [np.asarray(confusion, float) for confusion in confusions]
    for confusion in confusions:
        if confusion.ndim < 2 or confusion.shape[-2:] != confusions[0].shape[-1:] * 2 or confusion.shape[-1] < 2:
            raise ValueError(f"Shapes {[c.shape for c in confusions]} are not matrices (..., C, C) of one size C > 1.")
        if not ((confusion >= 0) & (confusion <= 1 + 1e-6)).all():
            raise ValueError("A confusion matrix has entries outside [0, 1]: give rows of probabilities, not counts.")
    return confusions if len(confusions) > 1 else confusions[0]


def js_divergence(first, second):
    """Row-averaged Jensen-Shannon divergence in bits, in [0, 1], not square-rooted: (..., C, C) twice -> (...).

    (1/C) sum_c [KL(P_c || M_c) + KL(Q_c || M_c)] / 2, M = (P + Q) / 2, entries clipped to [1e-7, 1] and rows
    renormalised inside KL. Batch dimensions broadcast.
    """
    first, second = (np.clip(confusion, CLIP, 1) for confusion in _matrices(first, second))
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
    return entr(_matrices(confusion)).sum(-1).mean(-1)


def norm_f(first, second):
    """Frobenius norm of the difference over C, ||P - Q||_F / C: (..., C, C) twice -> (...)."""
    first, second = _matrices(first, second)
    return np.sqrt(((first - second) ** 2).sum((-2, -1))) / first.shape[-1]


def cm_error(estimated, true, squared=True):
    """Mean over annotators of ||pi_r - pihat_r||_F^2 / C, in [0, 2] (or, not squared, of the norm / C); (R, C, C)."""
    norm = norm_f(estimated, true)
    return float(np.mean(norm**2) * np.shape(true)[-1] if squared else np.mean(norm))


def skill(confusion, prevalence=None):
    """Trace(P) / C, or sum_c rho_c P[c, c] with ``prevalence`` rho of shape (..., C): (..., C, C) -> (...)."""
    diagonal = np.diagonal(_matrices(confusion), axis1=-2, axis2=-1)
    return diagonal.mean(-1) if prevalence is None else (diagonal * np.asarray(prevalence)).sum(-1)


def spammer_score(confusion):
    """Mean over l of P[l, l] - mean_{k != l} P[k, l]; 1 good, 0 spammer, < 0 malicious: (..., C, C) -> (...)."""
    confusion = _matrices(confusion)
    size = confusion.shape[-1]
    return (size * skill(confusion) - confusion.sum((-2, -1)) / size) / (size - 1)


def bias_score(confusion):
    """Largest minus median column mean, max_l pbar_l - median_l pbar_l: (..., C, C) -> (...)."""
    share = _matrices(confusion).mean(-2)
    return share.max(-1) - np.median(share, axis=-1)


def biased_class(confusion):
    """Label an annotator favours, the argmax over l of the column mean pbar_l: (..., C, C) -> (...)."""
    return _matrices(confusion).mean(-2).argmax(-1)


def annotator_distance(confusions):
    """Mean squared entry difference of every pair of annotators, ||P_r - P_s||_F^2 / C^2: (R, C, C) -> (R, R)."""
    confusions = _matrices(confusions)
    flat = confusions.reshape(len(confusions), -1)
    return squareform(pdist(flat, "sqeuclidean")) / flat.shape[1]


def group_inertia(groups, distance=js_divergence):
    """Mean over pairs of groups (M, C, C) of JS, or of another ``distance`` such as `norm_f`; 0 for one group."""
    groups = _matrices(groups)
    left, right = np.triu_indices(len(groups), 1)
    return float(np.mean(distance(groups[left], groups[right]))) if len(left) else 0.0


def match_matrices(estimated, true):
    """Order (G,) that minimises the sum over g of JS(estimated[order[g]], true[g]), by the Hungarian algorithm.

    ``estimated`` is (M, C, C) and ``true`` (G, C, C) with M >= G; read the matrices as ``estimated[order]``.
    """
    estimated, true = _matrices(estimated, true)
    if len(estimated) < len(true):
        raise ValueError(f"{len(estimated)} estimated matrices cannot cover {len(true)} true ones: swap them.")
    return linear_sum_assignment(js_divergence(estimated, true[:, None]))[1]


# ---------------------------------------------------------------- recovery of latent structure
def quality_error(estimated, true):
    """Mean over annotators of |quality_est - quality_true|, both (R,)."""
    return float(np.mean(np.abs(np.subtract(estimated, true))))


def rank_error(estimated, true):
    """Mean over annotators of |rank_est - rank_true| of their qualities (R,); tied qualities share their mean rank."""
    return quality_error(rankdata(estimated), rankdata(true))


def meta_purity(truth, item, label):
    """Share of the meta set, items (m,) with meta labels (m,), whose label is the truth; unknown truths left out."""
    return accuracy(np.asarray(truth)[item], label)


def source_recovery(probabilities, source, weight=None):
    """Recovery of the noise source s of every annotation (1 = common) by omega or P(s = 1 | y).

    Parameters
    ----------
    probabilities : (n,) estimated probability of the common source
    source : (n,) true sources, 0 or 1
    weight : (n,) true omega, optional

    Returns
    -------
    dict with ``accuracy`` (threshold 1/2), ``auc`` (nan when only one source occurs) and, given ``weight``,
    ``correlation`` (Pearson, nan when either side is constant).
    """
    probabilities, source = np.asarray(probabilities), np.asarray(source).astype(int)
    scores = {"accuracy": accuracy(source, probabilities >= 0.5), "auc": area_under_roc(source, probabilities)}
    if weight is not None:
        varied = np.ptp(probabilities) > 0 and np.ptp(weight) > 0
        scores["correlation"] = float(np.corrcoef(probabilities, weight)[0, 1]) if varied else float("nan")
    return scores


def group_recovery(probabilities, groups):
    """Adjusted Rand index between argmax_m p(g = m | a), from (R, M), and the true groups (R,)."""
    return float(adjusted_rand_score(groups, np.argmax(probabilities, 1)))


def _row_divergences(confusion):
    confusion = _matrices(confusion)
    if not (confusion > 0).all():
        raise ValueError("A confusion matrix has a zero, so the KL between its rows is infinite: smooth it first.")
    return -entr(confusion).sum(-1)[..., None] - confusion @ np.log(confusion).swapaxes(-1, -2)


def remaining_uncertainty(crowd, prior, common, individual, weight):
    """F_i of Theorem 1 of CoNAL (Chu, Ma, Wang 2021, arXiv 2012.13052): what the labels leave unknown of each item.

    F_i = H(rho_i) - sum_{r in A_i} sum_{c, c'} rho_i[c] rho_i[c'] (omega_ir KL(pi_g[c] || pi_g[c'])
    + (1 - omega_ir) KL(pi_r[c] || pi_r[c'])), in nats; the sum runs over the observed annotations only.

    Parameters
    ----------
    crowd : only its ``item``, ``annotator`` and ``n_items`` are read
    prior : (N, C) class distribution rho_i of every item
    common, individual : (C, C) pi_g and (R, C, C) pi_r, without zeros
    weight : (n,) or scalar, omega of every annotation, the probability of the common matrix

    Returns
    -------
    (N,)
    """
    prior, weight, shared, own = (
        np.asarray(prior),
        np.asarray(weight),
        _row_divergences(common),
        _row_divergences(individual),
    )
    if prior.shape != (crowd.n_items, len(shared)):
        raise ValueError(f"prior has shape {prior.shape}: give one row of class probabilities per item.")
    if not ((weight >= 0) & (weight <= 1)).all():
        raise ValueError("weight must lie in [0, 1]: it is the probability of the common matrix.")
    rho, common_part = prior[crowd.item], np.einsum("ic,cd,id->i", prior, shared, prior)[crowd.item]
    own_part = sum(rho[:, c] * (own[crowd.annotator, c] * rho).sum(1) for c in range(len(shared)))  # memory n x C
    told = own_part + weight * (common_part - own_part)
    return entr(prior).sum(1) - np.bincount(crowd.item, weights=told, minlength=crowd.n_items)


def minimax_bound(crowd, prior, common, individual, weight, per_item=False):
    """Lower bound on the minimax error rate, (sum_i F_i - ln 2) / (N^2 ln C), clipped at 0.

    With ``per_item`` the sharper bound (1/N) sum_i max(0, (F_i - ln 2) / ln C) of Fano's inequality item by item
    (ours, not in the paper). Arguments as in `remaining_uncertainty`, which gives the F_i.
    """
    unknown = remaining_uncertainty(crowd, prior, common, individual, weight)
    size, top = len(unknown), np.log(np.shape(prior)[1])
    if per_item:
        return float(np.mean(np.maximum(0, (unknown - np.log(2)) / top)))
    return float(max(0, (unknown.sum() - np.log(2)) / (size**2 * top)))
