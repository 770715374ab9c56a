"""CrowdLayer: behind one classifier, every annotator has a small layer that turns its answer into theirs.

Rodrigues and Pereira, "Deep learning from crowds", AAAI 2018, doi:10.1609/aaai.v32i1.11506, arXiv:1709.01779.

The story:

1. A network gives item i the class probabilities p_i = softmax(f(x_i)).
2. The layer of annotator r makes scores of them, a_ir = g_r(p_i).
3. y_ir ~ Categorical(softmax(a_ir)).

| symbol | meaning                                       | site          |
|--------|-----------------------------------------------|---------------|
| p_i    | class probabilities of item i                 | `truth_probs` |
| z_i    | true class of item i, with likelihood="joint" | `truth`       |
| y_ir   | label of annotator r for item i               | `label`       |

The weights of the layers are trained like those of the network and have no prior: there is nothing to sample. They
are in `fit.weights`, as `module.` and the name in the last column.

| `layer`        | in the paper | g_r(p)                  | begins at       | weights                  |
|----------------|--------------|-------------------------|-----------------|--------------------------|
| `matrix`       | MW           | p W_r                   | W = start I     | `matrix`                 |
| `weights`      | VW           | w_r * p, class by class | w = start       | `weight`                 |
| `bias`         | VB           | p + b_r                 | b = 0           | `offset`                 |
| `weights_bias` | VW+B         | w_r * p + b_r           | both            | `weight`, `offset`       |
| `scalar`       | SW           | w_r p, w_r one number   | w = start       | `weight`                 |
| `stacked`      | -            | softmax(p V_r) W_r      | V = W = start I | `first_matrix`, `matrix` |

`stacked` is DL-CL_Over of Chu, Ma and Wang (2021), with twice the weights of `matrix` and no better for it. They call
it two stacked soft-max layers and give no formula; read here as one whole layer of the paper, soft-max included, put
before another.

Two likelihoods. `likelihood="per_annotation"`, the paper's: the cross-entropy of every label,
`sum_(i,r) log softmax(g_r(p_i))[y_ir]`. There is no true class in it; p_i, which sits where one would be, is what the
fit reports and what labels new items, with the layers left off. `likelihood="joint"`: one truth per item in place of
p_i, `sum_i log sum_c p_i[c] prod_r softmax(g_r(e_c))[y_ir]`, where e_c is all class c.

Confusion matrices. Row c of annotator r is `softmax(g_r(e_c))`; for `matrix`, the soft-max of each row of W_r. In the
joint form this is the chance of each label given the truth. In the other it is what the layer makes of a classifier
without doubt, and need not match how often annotators confuse classes: W_r and the doubts in p_i can stand in for each
other.

Differences from the paper's code: its loss is the mean over all items x annotators, where a missing label counts as
zero, so that its gradients are smaller by the share of cells that are filled; here every label counts once. Its weights
begin at `start=1`; CoNAL's code uses the same layer with 2.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import nn

from pyrocrowd.distributions import Confused
from pyrocrowd.errors import at_least, one_of
from pyrocrowd.nets import backbone

LAYERS = ("matrix", "weights", "bias", "weights_bias", "scalar", "stacked")


class CrowdLayer(PyroModule):
    """A classifier, and a layer per annotator that turns its answer into theirs (Rodrigues and Pereira 2018)."""

    def __init__(self, crowd, net="mlp", layer="matrix", start=1.0, likelihood="per_annotation"):
        super().__init__()
        one_of("layer", layer, LAYERS)
        one_of("likelihood", likelihood, ("joint", "per_annotation"))
        at_least("start", start, 0)
        self.layer, self.likelihood = layer, likelihood
        classes, people = crowd.n_classes, crowd.n_annotators
        self.net = backbone(net, crowd)
        if layer == "stacked":
            self.first_matrix = nn.Parameter(start * torch.eye(classes).repeat(people, 1, 1))
        if layer in ("matrix", "stacked"):
            self.matrix = nn.Parameter(start * torch.eye(classes).repeat(people, 1, 1))
        if layer in ("weights", "weights_bias", "scalar"):
            self.weight = nn.Parameter(torch.full((people, 1 if layer == "scalar" else classes), float(start)))
        if layer in ("bias", "weights_bias"):
            self.offset = nn.Parameter(torch.zeros(people, classes))

    def forward(self, crowd):
        with crowd.items:
            p = self.net(crowd.features).softmax(-1)
            if self.likelihood == "joint":
                truth = pyro.sample("truth", dist.Categorical(p))
            with crowd.annotations as annotator:
                if self.likelihood == "joint":
                    label = Confused(self.matrices(crowd), annotator, truth)
                else:
                    label = dist.Categorical(logits=self.scores(p, annotator))
                pyro.sample("label", label, obs=crowd.label)
        if self.likelihood == "per_annotation":
            pyro.deterministic("truth_probs", p)

    def matrices(self, crowd):
        """What each layer makes of a classifier without doubt: (annotators, true class, label)."""
        return self.scores(torch.eye(crowd.n_classes), torch.arange(crowd.n_annotators).unsqueeze(-1)).softmax(-1)

    def scores(self, p, annotator):
        """g_r(p_i) for p (items, classes) and annotator (slot, items): (slot, items, classes)."""
        if self.layer == "stacked":
            p = _times(p, self.first_matrix[annotator]).softmax(-1)
        if self.layer in ("matrix", "stacked"):
            return _times(p, self.matrix[annotator])
        scores = self.weight[annotator] * p if self.layer != "bias" else p
        return scores + self.offset[annotator] if "bias" in self.layer else scores


def _times(p, matrix):
    """Row vectors (..., classes) times matrices (..., classes, classes)."""
    return (p.unsqueeze(-2) @ matrix).squeeze(-2)
