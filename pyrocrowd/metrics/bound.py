"""Theorem 1 of CoNAL: how small the error rate can become at best, whatever is done with the labels.

Chu, Ma and Wang (2021), Learning from Crowds by Modeling Common Confusions, AAAI, arXiv 2012.13052.
"""

import numpy as np
from scipy.special import entr

from pyrocrowd.metrics.matrices import as_matrices

ENTRIES_AT_ONCE = 4_000_000  # of effective matrices; logarithms and intermediate results make that 2e7 numbers


def remaining_uncertainty(crowd, prior, common, individual, weight, effective=False):
    """F_i of Theorem 1 of CoNAL (Chu, Ma, Wang 2021, arXiv 2012.13052): what the labels leave unknown of each item.

    F_i = H(rho_i) - sum_{r in A_i} sum_{c, c'} rho_i[c] rho_i[c'] (omega_ir KL(pi_g[c] || pi_g[c'])
    + (1 - omega_ir) KL(pi_r[c] || pi_r[c'])), in nats; the sum runs over the observed annotations only.

    With ``effective`` R_i, where the bracket is KL(E_ir[c] || E_ir[c']) of the matrix that the label follows,
    E_ir = omega_ir pi_g + (1 - omega_ir) pi_r. KL is convex, so that F_i <= R_i, and equal where omega is 0 or 1 or
    pi_g = pi_r.

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
    prior, weight = np.asarray(prior), np.asarray(weight)
    common, individual = as_matrices(common, individual)
    if prior.shape != (crowd.n_items, len(common)):
        raise ValueError(f"prior has shape {prior.shape}: give one row of class probabilities per item.")
    if not ((weight >= 0) & (weight <= 1)).all():
        raise ValueError("weight must lie in [0, 1]: it is the probability of the common matrix.")
    what_is_told = _told_by_mixture if effective else _told_by_parts
    told = what_is_told(crowd, prior, common, individual, weight)
    return entr(prior).sum(1) - np.bincount(crowd.item, weights=told, minlength=crowd.n_items)


def minimax_bound(crowd, prior, common, individual, weight, per_item=False, effective=False):
    """Lower bound on the minimax error rate, (sum_i F_i - ln 2) / (N^2 ln C), clipped at 0.

    With ``per_item`` the sharper bound (1/N) sum_i max(0, (F_i - ln 2) / ln C) of Fano's inequality item by item
    (ours, not in the paper). With ``effective`` R_i in place of F_i, which is sharper too. Other arguments as in
    `remaining_uncertainty`, which gives both.
    """
    unknown = remaining_uncertainty(crowd, prior, common, individual, weight, effective)
    size, top = len(unknown), np.log(np.shape(prior)[1])
    if per_item:
        return float(np.mean(np.maximum(0, (unknown - np.log(2)) / top)))
    return float(max(0, (unknown.sum() - np.log(2)) / (size**2 * top)))


def minimax_envelope(largest, items, classes):
    """Corollary of Theorem 1: what `minimax_bound` cannot exceed, max_i F_i / (N ln C) - ln 2 / (N^2 ln C).

    It falls in N once N >= 2 ln 2 / max_i F_i. Not clipped: below 0 the bound says nothing.

    Parameters
    ----------
    largest : max_i F_i, or max_i R_i, of `remaining_uncertainty`
    items : N, a number or an array of them
    classes : C
    """
    items = np.asarray(items, float)
    if classes < 2 or not (items >= 1).all():
        raise ValueError(f"items={items} and classes={classes}: there must be at least 1 item and 2 classes.")
    return largest / (items * np.log(classes)) - np.log(2) / (items**2 * np.log(classes))


def _told_by_parts(crowd, prior, common, individual, weight):
    """What each annotation tells at most, the KLs of both matrices mixed: (n,)."""
    shared, own = _row_divergences(common), _row_divergences(individual)
    rho, common_part = prior[crowd.item], np.einsum("ic,cd,id->i", prior, shared, prior)[crowd.item]
    own_part = sum(rho[:, c] * (own[crowd.annotator, c] * rho).sum(1) for c in range(len(shared)))  # memory n x C
    return own_part + weight * (common_part - own_part)


def _row_divergences(confusion):
    _refuse_zeros(confusion)
    return -entr(confusion).sum(-1)[..., None] - confusion @ np.log(confusion).swapaxes(-1, -2)


def _told_by_mixture(crowd, prior, common, individual, weight):
    """What each annotation tells at most, the KLs of its effective matrix E: (n,), in blocks of bounded memory.

    sum_{c, c'} rho[c] rho[c'] KL(E[c] || E[c']) = sum_{c, l} rho[c] E[c, l] (ln E[c, l] - sum_c' rho[c'] ln E[c', l]):
    no matrix of KLs is needed.
    """
    weight, told = np.broadcast_to(weight, len(crowd.item)), np.empty(len(crowd.item))
    step = max(1, ENTRIES_AT_ONCE // common.size)
    for start in range(0, len(told), step):
        rows = slice(start, start + step)
        rho, omega = prior[crowd.item[rows]], weight[rows, None, None]
        effective = omega * common + (1 - omega) * individual[crowd.annotator[rows]]
        _refuse_zeros(effective)
        logarithm = np.log(effective)
        logarithm -= np.einsum("nc,ncl->nl", rho, logarithm)[:, None]
        told[rows] = np.einsum("nc,ncl,ncl->n", rho, effective, logarithm)
    return told


def _refuse_zeros(confusion):
    if not (confusion > 0).all():
        raise ValueError("A confusion matrix has a zero, so the KL between its rows is infinite: smooth it first.")
