"""Activity of the GPUs, ranked windows, attribution of GPU work."""
