"""What the playground needs to know of a service."""

from __future__ import annotations

from dataclasses import asdict

from scdd.core.errors import UserError
from scdd.processes.base import Process
from scdd.recipe import load as recipe
from scdd.samplers.options import SAMPLER_NAMES
from scdd.serve.replies import SettingsReply
from scdd.serve.service import Service


def settings_of(service: Service) -> SettingsReply:
    """The model, the limits, and what can be chosen."""
    whole, lm = recipe.schema(), service.lm
    own, refusals = lm.process, {name: _refusal(service, name) for name in SAMPLER_NAMES}
    return SettingsReply(
        model=service.name,
        parameters=lm.parameters,
        dtype=lm.dtype,
        process={"kind": lm.engine.process_name, "schedule": repr(own.schedule) if isinstance(own, Process) else ""},
        context=lm.context,
        room=lm.engine.room,
        length=service.usual_length,
        limits={name: getattr(service.limits, name) for name in ("length", "steps", "texts", "seconds", "body")},
        sampling={**asdict(lm.sampling), "steps": service.steps(None)},
        repair={**asdict(lm.repair), "steps": min(lm.repair.steps, service.limits.steps)},
        refusals={name: why for name, why in refusals.items() if why is not None},
        recipe_schema={"$defs": whole["$defs"], **{k: whole["properties"][k] for k in ("sampling", "process")}},
    )


def _refusal(service: Service, sampler: str) -> str | None:
    try:
        service.lm.plan(sampler=sampler).sampler.check(service.lm.engine.model)
    except UserError as error:
        return str(error)
    return None
