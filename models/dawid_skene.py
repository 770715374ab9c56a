"""Dawid-Skene: every annotator has a confusion matrix of their own.

Dawid and Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm", Applied Statistics 28
(1979), doi:10.2307/2346806. With priors on its parameters it is the Bayesian classifier combination of Kim and
Ghahramani (2012).

The story:

1. Classes occur with prevalence rho ~ Dirichlet(1).
2. Annotator r, shown an item of class c, answers l with probability pi_r[c, l];  pi_r[c, :] ~ Dirichlet(a[c, :]).
3. Item i has the true class z_i ~ Categorical(rho).
4. Each label of it is y_ir ~ Categorical(pi_r[z_i, :]).

| symbol | meaning                                       | site         |
|--------|-----------------------------------------------|--------------|
| rho    | how frequent each class is                    | `prevalence` |
| pi_r   | confusion matrix of annotator r, rows = truth | `confusion`  |
| z_i    | true class of item i                          | `truth`      |
| y_ir   | label of annotator r for item i               | `label`      |

Two likelihoods. `likelihood="joint"`, the paper's: one truth per item, shared by all its labels,
`sum_i log sum_c rho[c] prod_r pi_r[c, y_ir]`. `likelihood="per_annotation"`: the truth is redrawn for every label,
`sum_(i,r) log sum_c rho[c] pi_r[c, y_ir]`, the cross-entropy that the neural papers optimise. Without features the
second cannot tell annotators from prevalence and is here for comparison only; EM is exact for the first.

Prior. `a[c, :]` holds `strength` imagined labels for items of class c, two thirds of them right and the rest spread
over the wrong answers: annotators are believed to be better than chance, and one who is not shows it within a few
labels. Giving `smoothing` instead makes the model the classic one for EM: that much is added to every count (1:
Laplace; 0: maximum likelihood) and nothing to the prevalence.

Every engine uses the same prior. Given the truth, with expected counts n_r, the posterior mean of pi_r[c, :], its MAP
and the M-step of the EM are one and the same, `(n_r[c, l] + a[c, l]) / sum_l' (n_r[c, l'] + a[c, l'])`, since point
estimates are modes in the unconstrained space.

EM starts from soft majority vote with an M-step, as the paper does. A row without any count is uniform.
"""

import pyro
import pyro.distributions as dist
import torch

from pyrocrowd.distributions import Confused, imagined_labels
from pyrocrowd.errors import at_least, one_of

NOTHING = 1e-10  # a Dirichlet needs a positive concentration


def dawid_skene(crowd, strength=1.0, smoothing=None, likelihood="joint"):
    """Every annotator has a confusion matrix (Dawid and Skene 1979); fitted by EM, MAP, SVI or NUTS."""
    one_of("likelihood", likelihood, ("joint", "per_annotation"))
    at_least("strength", strength, 0.01)
    at_least("smoothing", 0.0 if smoothing is None else smoothing, 0.0)
    prevalence = pyro.sample("prevalence", dist.Dirichlet(imagined_items(crowd.n_classes, smoothing)))
    with crowd.annotators:
        prior = dist.Dirichlet(pseudo_counts(crowd.n_classes, strength, smoothing).clamp(min=NOTHING))
        confusion = pyro.sample("confusion", prior.to_event(1))
    with crowd.items:
        if likelihood == "joint":
            truth = pyro.sample("truth", dist.Categorical(prevalence))
        with crowd.annotations as annotator:
            if likelihood == "per_annotation":
                truth = pyro.sample("truth", dist.Categorical(prevalence))
            pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)


def m_step(crowd, posterior, strength, smoothing):
    """`prevalence` and `confusion` at their best given the posterior of the truth, in closed form."""
    truth = posterior["truth"]
    items = truth.sum(0) + imagined_items(crowd.n_classes, smoothing)
    counts = crowd.count(truth) + pseudo_counts(crowd.n_classes, strength, smoothing)
    rows = counts.sum(-1, keepdim=True)
    confusion = torch.where(rows > 0, counts / rows, 1 / crowd.n_classes)
    return {"prevalence": items / items.sum(), "confusion": confusion.clamp(min=torch.finfo(confusion.dtype).tiny)}


def imagined_items(classes, smoothing):
    """What the prior of the prevalence is worth, in items of each class."""
    return torch.full((classes,), 1.0 if smoothing is None else NOTHING)


def pseudo_counts(classes, strength, smoothing):
    """What the prior is worth, in labels: rows are true classes, columns answers."""
    return imagined_labels(classes, strength) if smoothing is None else torch.full((classes, classes), float(smoothing))
