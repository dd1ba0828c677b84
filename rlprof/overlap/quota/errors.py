"""What can go wrong with an MPS daemon and with quotas; errors say what to do next."""

from __future__ import annotations

from rlprof.errors import RlprofError


class QuotaError(RlprofError):
    """A quota that cannot be set, measured or searched for."""


class MpsError(QuotaError):
    """The MPS control daemon cannot be started, asked or ended."""


class MpsAbsentError(MpsError):
    """There is no MPS here: no program, no driver, no GPU, or no permission."""


class ForeignDaemonError(MpsError):
    """Somebody else's MPS daemon serves the GPU; it is left alone."""


class ClientLimitError(MpsError):
    """The MPS server takes no further client."""


class ProbeError(QuotaError):
    """A fresh process cannot say how many SMs it may use."""


class BranchError(QuotaError):
    """A branch cannot be started, ended by itself, or took too long."""
