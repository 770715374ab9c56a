"""The tables of CoNAL.

Chu, Ma, Wang, "Learning from Crowds by Modeling Common Confusions", AAAI 2021, arXiv 2012.13052.

Test accuracy in percent, mean and standard deviation of five runs, of the state with the best validation accuracy.
"""

from __future__ import annotations

# Chu, Ma, Wang (2021), Table 1: data set -> method -> test accuracy.
TABLE_1 = {
    "LabelMe": {
        "DL-MV": "79.83 ± 0.34",
        "DL-CL": "83.27 ± 0.52",
        "Doctor Net": "82.12 ± 0.43",
        "Anno-Reg": "82.77 ± 0.48",
        "Max-MIG": "85.33 ± 0.61",
        "DL-GLAD": "83.12 ± 0.34",
        "DL-WC": "82.74 ± 0.33",
        "AggNet": "84.75 ± 0.27",
        "CoNAL": "87.12 ± 0.55",
    },
    "Music": {
        "DL-MV": "72.53 ± 0.41",
        "DL-CL": "81.46 ± 0.53",
        "Doctor Net": "76.58 ± 0.47",
        "Anno-Reg": "79.12 ± 0.36",
        "Max-MIG": "81.37 ± 0.33",
        "DL-GLAD": "77.82 ± 0.37",
        "DL-WC": "75.76 ± 0.24",
        "AggNet": "81.92 ± 0.41",
        "CoNAL": "84.06 ± 0.42",
    },
}

# Chu, Ma, Wang (2021), Table 2: data set -> lambda, the weight of the term that keeps common and individual confusions
# apart -> test accuracy of CoNAL.
TABLE_2 = {
    "LabelMe": {0.0: "85.68 ± 0.38", 1e-4: "86.61 ± 0.41", 1e-5: "87.12 ± 0.55", 1e-6: "86.26 ± 0.47"},
    "Music": {0.0: "82.14 ± 0.31", 1e-4: "83.52 ± 0.25", 1e-5: "84.06 ± 0.42", 1e-6: "82.98 ± 0.37"},
}

# Chu, Ma, Wang (2021), Table 3: data set -> method -> test accuracy. With R annotators and C classes the noise layers
# have 2RC^2 (DL-CL_Over), RC^2 (DL-CL) and (R + 1)C^2 (CoNAL) parameters; the last two repeat Table 1.
TABLE_3 = {
    "LabelMe": {"DL-CL_Over": "82.34 ± 0.34", "DL-CL": "83.27 ± 0.52", "CoNAL": "87.12 ± 0.55"},
    "Music": {"DL-CL_Over": "80.47 ± 0.27", "DL-CL": "81.46 ± 0.53", "CoNAL": "84.06 ± 0.42"},
}
