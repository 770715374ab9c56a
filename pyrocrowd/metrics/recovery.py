"""Hidden structure found again: groups put in order, qualities, meta labels, noise sources, groups of annotators."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata
from sklearn.metrics import adjusted_rand_score

from pyrocrowd.metrics.labels import accuracy, area_under_roc
from pyrocrowd.metrics.matrices import as_matrices, js_divergence


def match_matrices(estimated, true):
    """Order (G,) that minimises the sum over g of JS(estimated[order[g]], true[g]), by the Hungarian algorithm.

    ``estimated`` is (M, C, C) and ``true`` (G, C, C) with M >= G; read the matrices as ``estimated[order]``.
    """
    estimated, true = as_matrices(estimated, true)
    if len(estimated) < len(true):
        raise ValueError(f"{len(estimated)} estimated matrices cannot cover {len(true)} true ones: swap them.")
    return linear_sum_assignment(js_divergence(estimated, true[:, None]))[1]


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
