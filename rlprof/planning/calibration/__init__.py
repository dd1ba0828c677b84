"""Calibration: measure a machine, fit the constants of the cost model, compare predictions with measurements.

Two halves, joined by one file of raw measurements (JSON lines): a bare GPU machine only has to measure.

    sweeps ─▶ measure (kernels, operators, links) ─▶ raw.jsonl ─▶ fit_* ─▶ calibrate ─▶ hw.toml
                                                               └──▶ validate ─▶ predicted against measured

Measuring needs PyTorch and the standard library alone; fitting needs numpy and scipy, and no PyTorch.
"""
