"""For the path of a child that trains: it does without PyTorch's compiler.

Optimizers and checkpoints load it to keep themselves out of what is compiled. Where nothing is, that takes
longer than the rest of a small training.
"""

import sys
import types
from typing import Any

compiler: Any = types.ModuleType("torch._dynamo")
compiler.disable = lambda call, *_, **__: call
compiler.graph_break = lambda *_, **__: None
compiler.config = types.SimpleNamespace(error_on_nested_fx_trace=True)
compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = compiler
