"""The compiled evaluator: lowering, schedule and memory of `rlprof.planning.evaluate` on arrays.

Imported only by `rlprof.planning.compiled`, when a judge is made: it needs numba.
"""
