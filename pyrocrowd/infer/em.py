"""EM: an exact E-step for any model, the model's own M-step, gradients for its networks. The log-posterior (see
`log_volume`) never falls."""

from __future__ import annotations

import numpy as np
import torch

from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.infer.exact import believe, expected_log_joint, explain_crowd
from pyrocrowd.infer.run import Learned, Task, evaluate
from pyrocrowd.infer.settings import EM
from pyrocrowd.progress import progress_bar

TOLERANCE_PER_LABEL, TOLERANCE_WITH_NETWORKS = 1e-12, 1e-6


@torch.no_grad()
def run(settings: EM, task: Task) -> Learned:
    """The best of several starts; the first is soft majority vote, the others blur it."""
    evaluate(task.model)
    best = None
    first = _snapshot(task.model)
    with progress_bar(f"{task.name} em", settings.max_iter * settings.restarts) as advance:
        for start in range(settings.restarts):
            _put_back(task.model, first)
            values, losses, stopped = _climb(settings, task, _start(task, start), advance)
            if best is None or losses[-1] < best.losses[-1]:
                draws = {name: value[None, None] for name, value in values.items()}
                notes = {"stopped": stopped, "converged": stopped == "converged", "iterations": len(losses)}
                best, state = Learned(draws, losses, notes=notes | {"start": start}), _snapshot(task.model)
            if stopped == "interrupted":
                break
    _put_back(task.model, state)
    return best


def _climb(settings, task, posterior, advance):
    (values, settled), losses, stopped = _m_step(task, posterior), [], "max_iter"
    networks = _Networks(settings, task, settled)
    per_label = TOLERANCE_WITH_NETWORKS if networks.parameters else TOLERANCE_PER_LABEL
    tolerance = per_label * task.crowd.n_annotations if settings.tol is None else settings.tol
    networks.improve(values, networks.believe(values, posterior["truth"]))
    try:
        while len(losses) < settings.max_iter:
            found = explain_crowd(task.model, task.crowd, values, task.anatomy, joint=True)
            losses.append(-found.log_posterior)
            advance(note=f"loss {losses[-1]:.3f}")
            if len(losses) > 1 and losses[-2] - losses[-1] < tolerance:
                stopped = "converged"
                break
            if len(losses) < settings.max_iter:  # the last values kept are those that the last loss belongs to
                beliefs = networks.believe(values)
                values, _ = _m_step(task, found.posterior)
                networks.improve(values, beliefs)
    except KeyboardInterrupt:
        if not losses:
            raise
        stopped = "interrupted"
    return values, losses, stopped


def _m_step(task, posterior) -> tuple[dict, list]:
    """Values of the continuous sites, and the names of the model's parameters that have a closed form and got it."""
    values = dict(task.m_step(task.crowd, posterior))
    missing = [name for name in task.anatomy.latent if name not in values]
    if missing:
        raise PyrocrowdError(f"The m_step of {task.name} returns no value for {', '.join(missing)}.")
    parameters = _parameters(task.model)
    settled = [name for name in values if name in parameters]
    for name in settled:
        parameters[name].copy_(values.pop(name))
    return values, settled


class _Networks:
    """The part of the M-step that has no closed form: some steps of Adam that raise the expected log-joint.

    Steps may overshoot, so the best state on the way is kept, which is the one before them at worst: the log-posterior
    cannot fall.
    """

    def __init__(self, settings, task, settled):
        self.task, self.steps = task, settings.network_steps
        self.parameters = [one for name, one in _parameters(task.model).items() if name not in settled]
        self.optimizer = torch.optim.Adam(self.parameters, settings.learning_rate) if self.parameters else None

    def believe(self, values, truth=None) -> list:
        """What the E-step believes of every batch; `truth` (items, classes) where it has yet to begin."""
        if not self.parameters:
            return []
        return [
            believe(self.task.model, batch, values, self.task.anatomy, None if truth is None else truth[batch.index])
            for batch in self.task.crowd.batches()
        ]

    def improve(self, values, beliefs) -> None:
        if not self.parameters:
            return
        best, state = -float("inf"), None
        for step in range(self.steps + 1):
            expected = self._ascend(values, beliefs)
            if expected > best:
                best, state = expected, [one.detach().clone() for one in self.parameters]
            if step < self.steps:
                self.optimizer.step()
        for one, value in zip(self.parameters, state, strict=True):
            one.copy_(value)

    @torch.enable_grad()
    def _ascend(self, values, beliefs) -> float:
        """The expected log-joint; its gradient is left with the parameters."""
        self.optimizer.zero_grad()
        total = 0.0
        for batch, belief in zip(self.task.crowd.batches(), beliefs, strict=True):
            expected = expected_log_joint(self.task.model, batch, values, self.task.anatomy, belief)
            (-expected / self.task.crowd.n_annotations).backward()
            total += expected.item()
        return total


def _parameters(model) -> dict:
    return dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}


def _snapshot(model) -> list:
    return [one.detach().clone() for one in _parameters(model).values()]


def _put_back(model, snapshot) -> None:
    for one, value in zip(_parameters(model).values(), snapshot, strict=True):
        one.copy_(value)


def _start(task, start) -> dict:
    vote = task.crowd.soft_vote()
    if start == 0:
        return {"truth": vote}
    noise = np.random.default_rng([task.seed, start]).dirichlet(np.ones(vote.shape[-1]), len(vote))
    return {"truth": 0.5 * vote + 0.5 * torch.as_tensor(noise, dtype=vote.dtype, device=vote.device)}
