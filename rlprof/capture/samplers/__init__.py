"""Samplers of activity: the SMs of each GPU by hardware counters, or the host's cores.

A sampler runs in a process of its own, `python -m rlprof.capture.sampler`, which imports neither torch nor
polars: the CUPTI that reads counters and the one that torch brings share a library name, and a profiled
program that dies must not take the samples with it. One back end per module:

======  ==================================================  =======================  =====================
name    what is read                                        period                   needs
======  ==================================================  =======================  =====================
cupti   ``sm__cycles_active`` by CUPTI's PM sampling        40 us to 10 ms           `cupti-python`, driver
dcgm    field 1002 of a running DCGM host engine            100 ms to 10 s           ``dcgmi``
nvml    ``SM_UTIL`` by NVML's GPM                           100 ms to 10 s           `nvidia-ml-py`, Hopper
host    busy share of the cores available to the process    20 ms to 10 s            Linux
======  ==================================================  =======================  =====================

`choose.choose` picks the best that works and says why the better ones do not. `nsys` is no sampler of this
kind: Nsight Systems starts the program itself; `rlprof.capture.samplers.nsys` gives its command line.
"""

from __future__ import annotations

from rlprof.capture.samplers.base import BACKENDS, Backend, Limits, SamplerError, Samples, check_period

__all__ = [
    "BACKENDS",
    "Backend",
    "Limits",
    "SamplerError",
    "Samples",
    "check_period",
]
