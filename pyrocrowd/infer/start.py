"""Where gradient engines begin: at majority vote, because a crowd's likelihood has a twin for every way to rename the
classes and only a good start tells them apart."""

from __future__ import annotations

from pyro.infer.autoguide.initialization import init_to_median, init_to_value

from pyrocrowd.infer.run import Task


def start_values(task: Task) -> dict:
    """Values for the sites that majority vote can tell: by the model's M-step, or by the sites' names."""
    crowd, vote = task.crowd, task.crowd.soft_vote()
    if task.m_step is not None:
        values = task.m_step(crowd, {"truth": vote})
        values = {name: value for name, value in values.items() if name in task.anatomy.latent}
    else:
        classes = crowd.n_classes
        values = {"prevalence": vote.mean(0), "confusion": crowd.count(vote)}
        whole_shapes = {"prevalence": (classes,), "confusion": (crowd.n_annotators, classes, classes)}
        values = {name: value for name, value in values.items() if task.anatomy.latent.get(name) == whole_shapes[name]}
    return {name: _inside(value) if name in ("prevalence", "confusion") else value for name, value in values.items()}


def init_function(task: Task):
    """The same as Pyro's autoguides and samplers want it; other sites start at the median of their prior."""
    return init_to_value(values=start_values(task), fallback=init_to_median(num_samples=50))


def _inside(counts, pseudo_count=0.05):
    """Shares, pulled a little off the border of the simplex, where gradients vanish."""
    shares = counts / counts.sum(-1, keepdim=True).clamp(min=1e-12)
    shares = shares + pseudo_count / counts.shape[-1]
    return shares / shares.sum(-1, keepdim=True)
