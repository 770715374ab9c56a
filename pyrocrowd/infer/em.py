"""EM: an exact E-step for any model, the model's own M-step. The log-posterior (see `log_volume`) never falls."""

from __future__ import annotations

import numpy as np
import torch

from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.infer.exact import explain_crowd
from pyrocrowd.infer.run import Learned, Task, evaluate
from pyrocrowd.infer.settings import EM
from pyrocrowd.progress import progress_bar

TOLERANCE_PER_LABEL = 1e-12


@torch.no_grad()
def run(settings: EM, task: Task) -> Learned:
    """The best of several starts; the first is soft majority vote, the others blur it."""
    evaluate(task.model)
    best = None
    with progress_bar(f"{task.name} em", settings.max_iter * settings.restarts) as advance:
        for start in range(settings.restarts):
            values, losses, stopped = _climb(settings, task, _start(task, start), advance)
            if best is None or losses[-1] < best.losses[-1]:
                draws = {name: value[None, None] for name, value in values.items()}
                notes = {"stopped": stopped, "converged": stopped == "converged", "iterations": len(losses)}
                best = Learned(draws, losses, notes=notes | {"start": start})
            if stopped == "interrupted":
                break
    return best


def _climb(settings, task, posterior, advance):
    values, losses, stopped = _m_step(task, posterior), [], "max_iter"
    tolerance = TOLERANCE_PER_LABEL * task.crowd.n_annotations if settings.tol is None else settings.tol
    try:
        while len(losses) < settings.max_iter:
            found = explain_crowd(task.model, task.crowd, values, task.anatomy)
            losses.append(-found.log_posterior)
            advance(note=f"loss {losses[-1]:.3f}")
            if len(losses) > 1 and losses[-2] - losses[-1] < tolerance:
                stopped = "converged"
                break
            if len(losses) < settings.max_iter:  # the last values kept are those that the last loss belongs to
                values = _m_step(task, found.posterior)
    except KeyboardInterrupt:
        if not losses:
            raise
        stopped = "interrupted"
    return values, losses, stopped


def _m_step(task, posterior):
    values = task.m_step(task.crowd, posterior)
    missing = [name for name in task.anatomy.latent if name not in values]
    if missing:
        raise PyrocrowdError(f"The m_step of {task.name} returns no value for {', '.join(missing)}.")
    return values


def _start(task, start) -> dict:
    vote = task.crowd.soft_vote()
    if start == 0:
        return {"truth": vote}
    noise = np.random.default_rng([task.seed, start]).dirichlet(np.ones(vote.shape[-1]), len(vote))
    return {"truth": 0.5 * vote + 0.5 * torch.as_tensor(noise, dtype=vote.dtype, device=vote.device)}
