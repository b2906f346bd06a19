"""Boosted trees, the baseline of every learned price: on the rows of scheduled programs, and on those of XLA's kernels.

They need `lightgbm` and the `scikit-learn` that it fits through, which only evaluations use: without them there is no
baseline.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

from costmodel.model.analytical import Coefficients
from costmodel.model.encode import join, kernel_features, pooled_features, prior_seconds
from superopt.errors import InputError
from superopt.lab.training.fit import SOFT_S, Data


def installed() -> bool:
    """Whether trees can be fitted here."""
    return all(importlib.util.find_spec(name) is not None for name in ("lightgbm", "sklearn"))


def boosted(x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, seed: int) -> Any:
    """Trees that predict y from rows x; one setting for everything, deterministic.

    Raises:
        InputError: `lightgbm` or `scikit-learn` is not installed.
    """
    if not installed():
        raise InputError("the trees need lightgbm", hint="pip install lightgbm scikit-learn, or evaluate without trees")
    lightgbm: Any = importlib.import_module("lightgbm")
    booster = lightgbm.LGBMRegressor(
        n_estimators=250, learning_rate=0.06, num_leaves=63, min_child_samples=10, subsample=0.8, subsample_freq=1,
        colsample_bytree=0.6, objective="huber", alpha=0.3, random_state=seed, n_jobs=1, verbose=-1,
    )  # fmt: skip
    return booster.fit(x, y, sample_weight=weight)


def kernel_seconds(train: Data, test: Data, prior: Coefficients, seed: int) -> np.ndarray:
    """Seconds of XLA's kernels by trees over the roofline that was fitted to the same labels."""
    base, wanted = prior_seconds(train.table, prior), prior_seconds(test.table, prior)
    booster = boosted(_inputs(train, prior), np.log((train.seconds + SOFT_S) / (base + SOFT_S)), None, seed)
    return np.maximum(np.exp(booster.predict(_inputs(test, prior))) * (wanted + SOFT_S) - SOFT_S, 1e-7)


def _inputs(data: Data, prior: Coefficients) -> np.ndarray:
    """The features of kernels that the network reads, except for edges."""
    pooled = pooled_features(join(data.structures, data.rows), data.rows)
    return np.hstack([kernel_features(data.table, prior, data.structures), pooled])
