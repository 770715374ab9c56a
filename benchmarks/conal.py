"""What a common matrix is worth: CoNAL against the same model with omega fixed to 0, by the size of the crowd.

Synthetic crowds (asymmetric and symmetric common noise of strength 0.7, individual 0.3, half of the noise common), five
seeds each, last epoch; accuracy in percent of the classifier on test items and of the inferred labels.
"""

import numpy as np
import torch

import pyrocrowd
from pyrocrowd import MAP, metrics
from pyrocrowd.data import simulate

SIZES, SEEDS = (500, 1000, 2000, 5000), 5


def accuracies(made, seed, **options):
    steps = max(600, 60 * made.crowd.n_items // 256)
    fit = pyrocrowd.fit("conal", made.crowd, MAP(steps=steps, batch_size=256, patience=0), seed=seed, **options)
    test = metrics.accuracy(made.test.truth, fit.predict_proba(made.test.features))
    return 100 * np.array([test, fit.metrics()["accuracy"]])


def main():
    torch.set_num_threads(1)
    print("| kind | items labelled | classifier | omega = 0 | margin | labels | omega = 0 | margin |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in ("asymmetric", "symmetric"):
        for size in SIZES:
            rows = []
            for seed in range(SEEDS):
                made = simulate.conal(items=size * 5 // 4, kind=kind, seed=seed)
                rows.append([accuracies(made, seed), accuracies(made, seed, omega=0.0)])
            full, alone = np.array(rows).transpose(1, 2, 0)
            cells = []
            for one, other in zip(full, alone, strict=True):
                margin = one - other
                cells += [f"{one.mean():.2f}", f"{other.mean():.2f}"]
                cells.append(f"{margin.mean():+.2f} ± {margin.std(ddof=1):.2f}")
            print(f"| {kind} | {size:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
