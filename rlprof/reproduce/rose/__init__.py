"""Rose (arXiv 2611.02705): tables of measurements on GPUs, read from `benchmarks/results/gpu`."""
