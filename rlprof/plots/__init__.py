"""Charts: prepared tables in, Altair charts out; `save` writes them without a browser.

Altair and vl-convert load on first use.
"""

from rlprof.plots.budget import ROW_BUDGET, RowBudgetError
from rlprof.plots.static import display_static, save

__all__ = ["ROW_BUDGET", "RowBudgetError", "display_static", "save"]
