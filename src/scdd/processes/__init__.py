"""Forward processes over one family of marginals, and all the algebra that follows from them."""

from scdd.processes.base import Process, Time
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD

__all__ = ["GIDD", "MDLM", "SCDD", "Process", "Time"]
