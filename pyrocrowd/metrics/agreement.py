"""What the labels of a crowd say by themselves: votes, agreement, and how much a further label is worth."""

from types import SimpleNamespace

import numpy as np

from pyrocrowd.metrics.labels import expected_accuracy_with_random_ties
from pyrocrowd.metrics.matrices import row_normalised


def _votes(crowd):
    cells = np.bincount(crowd.item * crowd.n_classes + crowd.label, minlength=crowd.n_items * crowd.n_classes)
    return cells.reshape(crowd.n_items, crowd.n_classes).astype(float)


def soft_vote(crowd):
    """Share of each label among the item's annotations, r_i[c] / sum r_i: (N, C); uniform for items without labels."""
    return row_normalised(_votes(crowd))


def hard_vote(crowd):
    """One-hot (N, C) of the most frequent label, ties (and items without labels) to the lowest class index."""
    return np.eye(crowd.n_classes)[_votes(crowd).argmax(1)]


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
