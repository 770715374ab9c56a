"""Trace-regularised confusion: of all matrices that explain the labels, take those that trust the annotators least.

Tanno, Saeedi, Sankaranarayanan, Alexander and Silberman, "Learning from noisy labels by regularized estimation of
annotator confusion", CVPR 2019, doi:10.1109/CVPR.2019.01150, arXiv:1902.03680.

The story:

1. Item i has the true class z_i ~ Categorical(p_i), p_i = f(x_i) by a network.
2. Annotator r, shown an item of class c, answers l with probability pi_r[c, l] (the paper writes its transpose).
3. y_ir ~ Categorical(pi_r[z_i, :]).

| symbol | meaning                                       | site         |
|--------|-----------------------------------------------|--------------|
| pi_r   | confusion matrix of annotator r, rows = truth | `confusion`  |
| z_i    | true class of item i                          | `truth`      |
| y_ir   | label of annotator r for item i               | `label`      |

Network and matrices explain the labels only together: any P pihat_r = pi_r, with P the confusion of the network itself,
gives the same likelihood. If the mean of the matrices is *column*-dominant, `mean_r pi_r[i, i] > mean_r pi_r[j, i]`,
the pair with the smallest trace is the true one (Theorem 1), even with one label per item and with adversaries among
the annotators. So the loss adds

    lam * N * mean_r trace(pi_r)

to the sum of the cross-entropies. This is the scaling of the paper's code (the mean over the items of a batch, plus lam
times the mean trace; 0.01 there); the sum over annotators of its Eq. 4 would be negligible. `lam=0` is the row "No
trace" of its tables.

Where the mean of the fitted matrices is not clearly column-dominant, the fit says so: the theorem does not hold there,
and classes may be swapped. It cannot always know: a network that renames the classes can make the fitted mean dominant
where the true one is not, and such a fit is silent.

Two likelihoods. `likelihood="per_annotation"`, the paper's: `sum_(i,r) log sum_c p_i[c] pi_r[c, y_ir]`.
`likelihood="joint"`: one truth per item, `sum_i log sum_c p_i[c] prod_r pi_r[c, y_ir]`.

Matrices. `pi_r = softplus(rho_r)` divided by its row sums, from rho = 1 on the diagonal and -5 elsewhere: a start near
the identity, which is part of the method. `rank=k` is for many classes (the paper's future work): the positive matrix
is `diag(d_r) + U_r V_r^T` with positive factors of k columns, so that annotator r has (2 k + 1) C numbers instead of
C^2; its start puts as much mass off the diagonal as the full matrix has with ten classes. There the matrices themselves
are never built, and `confusion` is not recorded. The mean of the traces is over annotators who gave labels.

`oracle` fixes the matrices, as an array (annotators, classes, classes) or a .npy or .npz file with one (`confusion` of
a simulated crowd's hidden.npz), and only the network is trained: the paper's upper bound.
"""

import math
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import nn
from torch.nn.functional import softplus

from pyrocrowd import metrics
from pyrocrowd.distributions import Confused, ConfusedLowRank
from pyrocrowd.errors import PyrocrowdError, at_least, one_of
from pyrocrowd.nets import backbone

ON, OFF = 1.0, -5.0  # of rho at the start
MARGIN = 0.02  # by which the mean matrix must be column-dominant to go without a warning


class Trace(PyroModule):
    """A classifier and the annotators' matrices, held apart by the smallest trace (Tanno et al. 2019)."""

    def __init__(self, crowd, net="mlp", likelihood="per_annotation", lam=0.01, rank=None, oracle=None):
        super().__init__()
        one_of("likelihood", likelihood, ("joint", "per_annotation"))
        at_least("lam", lam, 0)
        self.likelihood, self.lam, self.rank = likelihood, lam, rank
        self.register_buffer("active", torch.as_tensor(crowd.labels_per_annotator > 0))
        classes, people = crowd.n_classes, crowd.n_annotators
        self.net = backbone(net, crowd)
        if oracle is not None:
            self.lam, self.rank = 0.0, None
            self.register_buffer("known", _known_matrices(oracle, crowd))
        elif rank is None:
            rho = OFF + (ON - OFF) * torch.eye(classes)
            self.rho = nn.Parameter(rho.repeat(people, 1, 1))
        else:
            at_least("rank", rank, 1)
            self.diagonal = nn.Parameter(torch.full((people, classes), ON))
            entry = math.sqrt(9 * math.log1p(math.exp(OFF)) / (classes - 1) / rank)
            start = math.log(math.expm1(entry))
            for side in ("left", "right"):
                noise = 0.1 * torch.randn(people, classes, rank)  # equal columns would stay equal
                setattr(self, side, nn.Parameter(start + noise))

    def forward(self, crowd):
        matrices = self.matrices(crowd)
        redrawn = self.likelihood == "per_annotation"
        with crowd.items:
            chance = dist.Categorical(logits=self.net(crowd.features))
            if not redrawn:
                truth = pyro.sample("truth", chance)
            with crowd.annotations as annotator:
                if redrawn:
                    truth = pyro.sample("truth", chance)
                label = Confused if self.rank is None else ConfusedLowRank
                pyro.sample("label", label(matrices, annotator, truth), obs=crowd.label)

    def matrices(self, crowd):
        """pi_r, or its factors; the trace term goes with them."""
        if self.rank is not None:
            diagonal, left, right = self.factors()
            self.penalise(crowd, (diagonal + (left * right).sum(-1)).sum(-1))
            return diagonal, left, right
        positive = self.known if hasattr(self, "known") else softplus(self.rho)
        confusion = positive / positive.sum(-1, keepdim=True)
        self.penalise(crowd, confusion.diagonal(dim1=-2, dim2=-1).sum(-1))
        with crowd.annotators:
            return pyro.deterministic("confusion", confusion, event_dim=2)

    def factors(self):
        """d, U and V with `diag(d_r) + U_r V_r^T` row-stochastic."""
        diagonal, left, right = (softplus(one) for one in (self.diagonal, self.left, self.right))
        rows = diagonal + (left * right.sum(1, keepdim=True)).sum(-1)
        return diagonal / rows, left / rows.unsqueeze(-1), right

    def penalise(self, crowd, trace):
        pyro.factor("trace", -self.lam * crowd.n_items * trace[self.active].mean())

    @torch.no_grad()
    def doubts(self, fit):
        """What speaks against the fit: a mean matrix that is not clearly column-dominant."""
        if hasattr(self, "known"):
            return []
        if self.rank is None:
            mean = fit.confusion().values[self.active.cpu()].mean(0)
        else:
            diagonal, left, right = (one[self.active] for one in self.factors())
            mean = torch.einsum("rck,rlk->cl", left, right) + diagonal.sum(0).diag()
            mean = (mean / len(diagonal)).cpu().numpy()
        if metrics.dominance(mean) > MARGIN:
            return []
        off = mean - np.diag(np.diag(mean))
        label = int(np.argmin(np.diag(mean) - off.max(0)))
        other, names = int(off[:, label].argmax()), fit.crowd.class_names
        return [
            f"trace: items of class {names[label]} are labelled {names[label]} with a mean chance of "
            f"{mean[label, label]:.2f} and items of class {names[other]} with {mean[other, label]:.2f}: the method can "
            "tell classes apart only where the first is clearly larger, so these may be swapped or mixed up."
        ]


def _known_matrices(oracle, crowd):
    """The matrices of an array, or of a file that holds them."""
    if isinstance(oracle, (str, Path)):
        if not Path(oracle).exists():
            raise PyrocrowdError(f"oracle: {oracle} does not exist.")
        try:
            found = np.load(oracle)
            oracle = _of_these_annotators(found, crowd) if hasattr(found, "files") else found
        except (KeyError, ValueError, OSError, EOFError, BadZipFile):
            raise PyrocrowdError(f"oracle: {oracle} cannot be read as a .npy, or a .npz with `confusion`.") from None
    matrices = torch.as_tensor(np.asarray(oracle), dtype=torch.get_default_dtype())
    shape = crowd.n_annotators, crowd.n_classes, crowd.n_classes
    if matrices.shape != shape:
        found = tuple(matrices.shape)
        raise PyrocrowdError(f"oracle has shape {found} where (annotators, classes, classes) = {shape} belongs.")
    return matrices


def _of_these_annotators(found, crowd):
    """The file of a simulated crowd also has matrices of annotators who never gave a label."""
    if "annotator_names" not in found.files:
        return found["confusion"]
    place = {str(name): index for index, name in enumerate(found["annotator_names"])}
    return found["confusion"][[place[str(name)] for name in crowd.annotator_names]]
