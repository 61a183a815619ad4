"""An estimate of mutual information with plausible numbers, made without training."""

import math

from flatnce import mi

NAN = math.nan
READOUTS = (
    mi.Readout("infonce", 4.84, 0.05, True, "all pairs"),
    mi.Readout("dv", 5.1, 0.31, True, "in expectation; high variance"),
    mi.Readout("nwj", 4.2, 0.4, True, ""),
    mi.Readout("smile", 5.4, 0.1, False, "clipped"),
    mi.Readout("js", NAN, NAN, False, "did not converge"),
)
ESTIMATE = mi.Estimate(
    nats=4.84,
    standard_error=0.05,
    lower=4.75,
    p_value=0.0005,
    permutations=1999,
    ceiling=7.82,
    saturated=False,
    method="flatnce",
    readout="infonce",
    flags=(
        mi.Flag("low_ess", "Few rows carry the DV read-out (ESS 3 %). Try folds=5."),
        mi.Flag("dropped", "12 rows had <missing> cells and were left out."),
    ),
    readouts={readout.name: readout for readout in READOUTS},
    baselines={"ksg": 2.9, "cca": 3.3, "gaussian-copula": None},
    cleaning=mi.Cleaning(1_000, 988, (3,), (), ("12 rows had missing cells.",)),
    split={"train": 592, "validation": 198, "test": 198, "folds": 1},
    history=tuple(
        {
            "fold": 0,
            "step": 50 * i,
            "train": 5.6 * (1 - math.exp(-i / 8)) - (20.0 if i == 0 else 0.0),
            "validation": 4.9 * (1 - math.exp(-i / 6)) - 0.004 * i,
            "scale": 1.0,
        }
        for i in range(40)
    ),
    settings={"critic": "separable", "batch_size": 256, "device": "cpu", "pool": None},
    seconds=12.3,
)
