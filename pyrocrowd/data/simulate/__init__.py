"""Crowds made up on purpose: the truth behind them can be looked up, so that a fit can be held against it.

One paper's generator = one file with one function, which `SIMULATORS` makes a command. Nothing here imports torch or
pandas before a crowd is made.
"""

from pyrocrowd.data.simulate.conal import conal
from pyrocrowd.data.simulate.matrices import from_confusions, hammers_and_spammers
from pyrocrowd.data.simulate.simulated import Simulated, hidden
from pyrocrowd.data.simulate.trace import four_annotators, hammer_spammers, pairwise_flippers, trace

SIMULATORS = {simulator.__name__: simulator for simulator in (conal, trace)}

__all__ = [
    "SIMULATORS",
    "Simulated",
    "conal",
    "four_annotators",
    "from_confusions",
    "hammer_spammers",
    "hammers_and_spammers",
    "hidden",
    "pairwise_flippers",
    "trace",
]
