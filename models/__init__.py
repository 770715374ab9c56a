"""The zoo: one paper = one file. `pyrocrowd models` lists them."""
