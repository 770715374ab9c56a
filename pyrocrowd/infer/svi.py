"""SVI and MAP: one loop. `TraceEnum_ELBO` sums discrete sites out, continuous ones get a guide, networks learn.

The loss is divided by the number of annotations before its gradient is taken, so that clipping and weight decay mean
the same on a small and on a large crowd; what is recorded is the whole loss.
"""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack
from itertools import islice
from operator import attrgetter

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoNormal

from pyrocrowd import metrics
from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.infer.exact import explain_crowd, log_volume
from pyrocrowd.infer.run import Learned, Task, evaluate
from pyrocrowd.infer.settings import MAP, SVI
from pyrocrowd.infer.start import init_function
from pyrocrowd.progress import progress_bar

WHOLE_CROWD_UP_TO, DEFAULT_BATCH = 20_000, 2_048
ROUND = 50  # steps per look at the loss
LOOKS = 200  # most evaluations of a validation or held-out set in one run
MOST_VALUES = 4e7  # draws x values that are kept in memory


def run(settings: SVI, task: Task) -> Learned:
    crowd = task.crowd
    if settings.select == "held_out":
        crowd, _ = crowd.hold_out_annotations(settings.held_out, task.seed)
    guide, loss_function = _guide(settings, task), _loss_function(settings, task)
    size = settings.batch_size or (DEFAULT_BATCH if crowd.n_items > WHOLE_CROWD_UP_TO else crowd.n_items)
    per_epoch = math.ceil(crowd.n_items / size)
    steps = settings.epochs * per_epoch if settings.epochs else settings.steps
    parameters = _parameters(loss_function, task.model, guide, crowd.batch(np.arange(min(8, crowd.n_items))))
    watch = _Watch(settings, task, guide, crowd, parameters, every=max(per_epoch, math.ceil(steps / LOOKS)))
    losses, stopped = [], "steps"
    if not any(parameters.values()):  # nothing to learn: one look at the loss is all there is
        with torch.no_grad():
            losses.append(float(loss_function(task.model, guide, crowd.batch())))
        steps, stopped = 0, "converged"
    else:
        optimizer, scheduler = _optimizer(settings, parameters, steps)
    _train(task.model)
    with progress_bar(f"{task.name} {settings.name}", steps) as advance, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Encountered NaN")  # said below, as an error with a remedy
        try:
            for batch in _stream(crowd, size, task.seed, steps):
                optimizer.zero_grad()
                loss = loss_function(task.model, guide, batch)
                (loss / crowd.n_annotations).backward()
                torch.nn.utils.clip_grad_norm_(sum(parameters.values(), []), settings.clip)
                optimizer.step()
                scheduler.step()
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    where = f"the loss is {losses[-1]} after {len(losses)} steps"
                    raise PyrocrowdError(f"{task.name}: {where}; a smaller learning_rate may help.")
                advance(note=f"loss {losses[-1] / crowd.n_annotations:.4f} per label")
                watch.look(len(losses))
                if settings.restart_epochs and len(losses) % (settings.restart_epochs * per_epoch) == 0:
                    optimizer.state.clear()
                if _has_settled(losses, settings):
                    stopped = "converged"
                    break
        except KeyboardInterrupt:
            if not losses:
                raise
            stopped = "interrupted"
    notes = {"stopped": stopped, "converged": stopped == "converged", "steps": len(losses), **watch.finish()}
    evaluate(task.model)
    return Learned(_draws(settings, task, guide), losses, history=watch.history, notes=notes)


def _guide(settings, task):
    if not task.anatomy.latent:
        return lambda batch: None
    story = poutine.block(task.model, expose=list(task.anatomy.latent))
    options = dict(init_loc_fn=init_function(task), create_plates=lambda batch: batch.items)
    guide = _Point(story, **options) if isinstance(settings, MAP) else AutoNormal(story, init_scale=0.05, **options)
    guide(task.crowd.batch())  # the prototype: one value for every item and annotator
    return guide


class _Point(AutoDelta):
    """One value for every continuous site: the mode in the unconstrained space, as in EM (see `log_volume`)."""

    def forward(self, batch):
        if self.prototype_trace is None:
            self._setup_prototype(batch)
        plates, values = self._create_plates(batch), {}
        for name, site in self.prototype_trace.iter_stochastic_nodes():
            with ExitStack() as stack:
                for frame in site["cond_indep_stack"]:
                    stack.enter_context(plates[frame.name])
                value = attrgetter(name)(self)
                point = dist.Delta(value, -log_volume(site["fn"], value), event_dim=site["fn"].event_dim)
                values[name] = pyro.sample(name, point)
        return values


def _loss_function(settings, task):
    """Minus the ELBO of one batch, scaled to the whole crowd, as a tensor that gradients flow through."""
    options = dict(max_plate_nesting=task.anatomy.nesting, num_particles=settings.particles)
    if not task.anatomy.enumerated:
        return Trace_ELBO(**options).differentiable_loss
    elbo = TraceEnum_ELBO(**options)
    return lambda model, guide, batch: elbo.differentiable_loss(config_enumerate(model), guide, batch)


def _parameters(loss_function, model, guide, batch) -> dict:
    """The tensors that are learned: the guide's, and the model's own (networks and `pyro.param`)."""
    with poutine.trace(param_only=True) as capture:
        loss_function(model, guide, batch)
    of_guide = list(guide.parameters()) if isinstance(guide, torch.nn.Module) else []
    known = {id(parameter) for parameter in of_guide}
    found = [site["value"].unconstrained() for site in capture.trace.nodes.values()]
    found += list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    of_model = {id(one): one for one in found if id(one) not in known and one.requires_grad}
    return {"guide": of_guide, "model": list(of_model.values())}


def _optimizer(settings, parameters, steps):
    groups = [
        {"params": parameters["guide"], "weight_decay": 0.0},
        {"params": parameters["model"], "weight_decay": settings.weight_decay},
    ]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    extra = {"momentum": settings.momentum} if settings.optimizer == "sgd" else {}
    optimizer = kinds[settings.optimizer](groups, lr=settings.learning_rate, **extra)
    falls = {
        "constant": lambda step: 1.0,
        "cosine": lambda step: 0.5 + 0.495 * math.cos(math.pi * min(step / steps, 1.0)) + 0.005,
        "exponential": lambda step: 0.01 ** (step / steps),
    }
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, falls[settings.schedule])


def _stream(crowd, size, seed, steps):
    """Batches without end, reshuffled on every pass."""
    generator, given = np.random.default_rng(seed), 0
    while given < steps:
        for batch in islice(crowd.batches(size, generator), steps - given):
            yield batch
            given += 1


def _has_settled(losses, settings) -> bool:
    """No round of the last few has brought the mean loss below what it was before them."""
    rounds, rest = divmod(len(losses), ROUND)
    if rest or not settings.patience or rounds <= settings.patience:
        return False
    means = np.asarray(losses).reshape(rounds, ROUND).mean(1)
    before = means[: -settings.patience].min()
    return means[-settings.patience :].min() > before - settings.tolerance * abs(before)


@torch.no_grad()
def _draws(settings, task, guide) -> dict:
    """The guide's point, or draws from it, as (chain, draw, ...)."""
    if not task.anatomy.latent:
        return {}
    point = {name: value.detach() for name, value in guide.median(task.crowd.batch()).items()}
    if isinstance(settings, MAP):
        return {name: value[None, None] for name, value in point.items()}
    largest = max(task.crowd.n_annotations, sum(value.numel() for value in point.values()))
    count = max(20, min(settings.draws, int(MOST_VALUES // largest)))
    with pyro.plate("draws", count, dim=-1 - task.anatomy.nesting):
        drawn = guide(task.crowd.batch())
    return {name: drawn[name].reshape(1, count, *value.shape) for name, value in point.items()}


def _train(model):
    if isinstance(model, torch.nn.Module):
        model.train()


class _Watch:
    """Looks at a validation or test set, or at held-out labels, along the way and remembers the best state."""

    def __init__(self, settings, task, guide, kept, parameters, every):
        self.settings, self.task, self.guide, self.kept, self.every = settings, task, guide, kept, every
        self.tensors = sum(parameters.values(), [])
        self.tensors += list(task.model.buffers()) if isinstance(task.model, torch.nn.Module) else []
        self.history, self.best = {}, None
        self.sets = {}
        for name in ("validation", "test"):
            watched = getattr(settings, name)
            if watched is not None and (watched.features is None or watched.truth is None):
                raise PyrocrowdError(f"The {name} set needs features and truth.")
            if watched is not None:
                self.sets[name] = watched.to(task.crowd.device)
        if settings.select == "best" and ("validation" not in self.sets or not task.anatomy.reads_features):
            raise PyrocrowdError(
                "select=best needs a validation set and a model that reads features; use last or held_out."
            )

    def look(self, step):
        if step % self.every or (not self.sets and self.settings.select == "last"):
            return
        evaluate(self.task.model)
        found = {f"{name}_accuracy": self._accuracy(watched) for name, watched in self.sets.items()}
        if self.settings.select == "held_out":
            found["held_out_log_likelihood"] = self._log_likelihood(self.task.crowd) - self._log_likelihood(self.kept)
        _train(self.task.model)
        for name, value in {"step": step, **found}.items():
            self.history.setdefault(name, []).append(value)
        if self.settings.select == "last":
            return
        score = found["validation_accuracy" if self.settings.select == "best" else "held_out_log_likelihood"]
        if self.best is None or score > self.best[0]:
            self.best = score, step, [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def finish(self) -> dict:
        """Put the best state back; say what was selected and by what."""
        if self.best is None:
            return {"selection": "last"}
        score, step, state = self.best
        for tensor, value in zip(self.tensors, state, strict=True):
            tensor.copy_(value)
        return {"selection": self.settings.select, "selected_step": step, "selected_score": score}

    def _point(self):
        return dict(self.guide.median(self.task.crowd.batch())) if self.task.anatomy.latent else {}

    @torch.no_grad()
    def _log_likelihood(self, crowd):
        return explain_crowd(self.task.model, crowd, self._point(), self.task.anatomy).log_likelihood

    @torch.no_grad()
    def _accuracy(self, watched):
        new = self.task.crowd.new_items(watched.features)
        found = explain_crowd(self.task.model, new, self._point(), self.task.anatomy, batch_size=DEFAULT_BATCH)
        return metrics.accuracy(watched.truth, found.posterior["truth"].cpu().numpy())
