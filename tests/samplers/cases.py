"""Every sampler that goes row by row, with a process that it can walk."""

from __future__ import annotations

from scdd.processes.base import Process
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Sampler
from scdd.samplers.gidd_correct import GiddCorrect
from scdd.samplers.informed import Informed
from scdd.samplers.p2 import P2
from scdd.samplers.prism import Prism
from scdd.samplers.remdm import Remdm
from scdd.samplers.threshold import Threshold


def every_sampler(noisy: Process, other: Process, masked: Process) -> dict[str, tuple[Process, Sampler]]:
    """By name; `noisy` is an SCDD, `other` a GIDD, `masked` an MDLM."""
    return {
        "scdd": (noisy, Ancestral()),
        "gidd": (other, Ancestral()),
        "mdlm": (masked, Ancestral()),
        "cap": (masked, Remdm("cap", eta=0.2)),
        "rescale": (masked, Remdm("rescale", eta=0.5)),
        "conf": (masked, Remdm("conf")),
        "loop": (masked, Remdm("loop", eta=0.2)),
        "informed": (masked, Informed(2)),
        "prism": (masked, Prism(remask=0.2)),
        "p2": (masked, P2(1.5)),
        "threshold": (masked, Threshold(0.5)),
        "gidd-correct": (noisy, GiddCorrect(corrections=6, patience=2)),
    }
