"""For the path of a child that trains: it does without PyTorch's compiler.

Optimizers load it to keep themselves out of what is compiled. Where nothing is, that takes longer than the
rest of a small training.
"""

import sys
import types

compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda call, *_, **__: call  # type: ignore[attr-defined]
compiler.graph_break = lambda *_, **__: None  # type: ignore[attr-defined]
sys.modules["torch._dynamo"] = compiler
