"""What the papers print, for the tables to be set beside what is computed here. None: an empty cell."""

from __future__ import annotations

Cells = dict[int, tuple[float | None, ...]]

MAX_COLUMNS = ("Identity", "Workload", "Streaming H2", "Full H2", "BLT", "Toeplitz", "Col-Norm Toep", "Dense")

# Monograph, Table 2.2 (max loss).
TABLE_2_2: Cells = {
    8: (2.828, 2.828, None, 2.382, 1.723, 1.718, 1.573, 1.51),
    16: (4.0, 4.0, None, 2.881, 1.944, 1.944, 1.783, 1.704),
    32: (5.657, 5.657, None, 3.381, 2.168, 2.167, 1.997, 1.905),
    64: (8.0, 8.0, None, 3.883, 2.391, 2.389, 2.212, 2.111),
    128: (11.314, 11.314, None, 4.384, 2.61, 2.61, 2.428, 2.32),
    256: (16.0, 16.0, None, 4.886, 2.832, 2.831, 2.645, 2.532),
    512: (22.627, 22.627, None, 5.387, 3.054, 3.052, 2.863, 2.746),
    1024: (32.0, 32.0, None, 5.888, 3.273, 3.273, 3.081, 2.958),
    2048: (45.255, 45.255, None, 6.389, 3.494, 3.493, 3.299, 3.177),
    4096: (64.0, 64.0, None, 6.89, 3.716, 3.714, 3.518, None),
    8192: (90.51, 90.51, None, 7.391, 3.939, 3.935, 3.737, None),
}

# Monograph, Table 2.3 (RMS loss).
TABLE_2_3: Cells = {
    8: (2.121, 2.828, 2.178, 1.656, 1.544, 1.544, 1.512, 1.494),
    16: (2.915, 4.0, 2.663, 1.938, 1.751, 1.75, 1.714, 1.689),
    32: (4.062, 5.657, 3.156, 2.227, 1.964, 1.963, 1.922, 1.892),
    64: (5.701, 8.0, 3.652, 2.518, 2.18, 2.179, 2.135, 2.1),
    128: (8.031, 11.314, 4.151, 2.81, 2.398, 2.397, 2.35, 2.311),
    256: (11.336, 16.0, 4.65, 3.102, 2.617, 2.616, 2.567, 2.524),
    512: (16.016, 22.627, 5.15, 3.394, 2.837, 2.836, 2.784, 2.739),
    1024: (22.638, 32.0, 5.65, 3.686, 3.057, 3.057, 3.003, 2.955),
    2048: (32.008, 45.255, 6.15, 3.978, 3.278, 3.277, 3.221, 3.172),
    4096: (45.26, 64.0, 6.65, 4.269, 3.499, 3.498, 3.44, None),
    8192: (64.004, 90.51, 7.15, 4.56, 3.72, 3.718, 3.66, None),
}

# Buffers with which Table 2.2's BLT column is reproduced, by the first n that uses them.
BUFFERS_MAX = {8: 1, 16: 2, 32: 2, 64: 2, 128: 3, 256: 3, 512: 3, 1024: 4, 2048: 4, 4096: 4, 8192: 4}

# arXiv 2408.08868: n = 2052, min-sep b = 342, k = 6; its RMS and max headers are exchanged. (RMS, max)
FEDERATED: dict[str, tuple[float | None, float | None]] = {
    "DP-SGD": (78.48, None),
    "tree (full Honaker)": (12.47, None),
    "BandMF, 342 bands": (8.60, None),
    "BLT": (9.33, 10.79),
}

# arXiv 2601.22334: n = 3900, b = 390, k = 10, RMS loss times sigma = 0.6003.
MULTI_EPOCH_SIGMA = 0.6003
MULTI_EPOCH: dict[str, float] = {
    "DP-SGD": 83.85,
    "lambda = 0.975": 12.73,
    "lambda = 0.95": 14.74,
    "lambda = 0.9": 19.72,
    "BISR p = 2": 48.45,
    "BISR p = 4": 33.47,
    "BISR p = 16": 17.95,
    "BISR p = 64": 10.50,
    "BISR p = 390": 8.45,
    "BSR p = 2": 62.51,
    "BSR p = 4": 46.80,
    "BSR p = 16": 26.27,
    "BSR p = 64": 14.89,
    "BSR p = 390": 8.15,
    "BandMF, 390 bands": 7.77,
    "BLT": 8.14,
    "banded inverse p = 2": 12.69,
    "banded inverse p = 4": 10.27,
    "banded inverse p = 16": 8.54,
    "banded inverse p = 390": 7.87,
}
