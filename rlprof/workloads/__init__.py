"""Training programs to measure on: real policies, simulators and algorithms, and today's schedules.

Importing this package imports neither torch, mujoco nor polars; `pip install "rlprof[workloads]"` brings what
running needs.
"""
