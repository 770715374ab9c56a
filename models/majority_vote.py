"""Majority vote: every label counts the same.

The story that majority vote tells: nobody is better than anybody else, and each item has label shares of its own,

    y_ir ~ Categorical(votes_i),    votes_i[c] = #{r : y_ir = c} / |A_i|,

whose maximum-likelihood estimate is the share of the votes. There is no annotator in it and nothing to learn, which is
why every other model is held against it.

| symbol  | meaning                            | site          |
|---------|------------------------------------|---------------|
| votes_i | share of each class among the votes | `truth_probs` |
| y_ir    | label of annotator r for item i    | `label`       |

`vote="soft"` reports the shares as probabilities; `vote="hard"` gives all probability to the winner. Ties go to the
class that comes first, as in most implementations. Items without labels get equal shares.
"""

import pyro
import pyro.distributions as dist
import torch

from pyrocrowd.errors import one_of


def majority_vote(crowd, vote="soft"):
    """Every label counts the same: shares of the votes (soft) or the winner (hard)."""
    one_of("vote", vote, ("soft", "hard"))
    votes = torch.nn.functional.one_hot(crowd.label, crowd.n_classes) * crowd.mask.unsqueeze(-1)
    votes = votes.sum(0).to(torch.get_default_dtype())
    votes = torch.where(votes.sum(-1, keepdim=True) > 0, votes, 1.0)
    shares = votes / votes.sum(-1, keepdim=True)
    winner = torch.nn.functional.one_hot(shares.argmax(-1), crowd.n_classes).to(shares.dtype)
    pyro.deterministic("truth_probs", shares if vote == "soft" else winner)
    with crowd.items, crowd.annotations:
        pyro.sample("label", dist.Categorical(shares), obs=crowd.label)


def m_step(crowd, posterior):
    """Nothing to estimate: the votes are the answer."""
    return {}
