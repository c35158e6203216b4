"""A model card: README.md, for people and for the Hub. It says what the recipe and the source's own card say, no more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from scdd.bundle.huggingface import Sheet
from scdd.core.files import plain_yaml

BEGIN, END = "<!-- scdd: how to use -->", "<!-- scdd: end -->"
PROCESSES = {
    "scdd": "Self-Correcting Discrete Diffusion (masks and uniform noise; the reverse process corrects tokens in place)",
    "gidd": "GIDD (masks and uniform noise in one mixture)",
    "mdlm": "masked diffusion (MDLM)",
    "ar": "autoregressive, left to right",
}
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)


def card(sheet: Sheet, own: str | None = None, transformers: bool = True) -> str:
    """The card's text; `own` is the card that the model already has, whose words and numbers stay."""
    front, body = parted(own or "")
    tags = front.get("tags")
    listed = [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, list) else []
    listed += [
        tag for tag in ("scdd", "discrete-diffusion") if tag not in listed and (tag == "scdd" or not sheet.causal)
    ]
    front = {
        **front,
        "library_name": "transformers" if transformers else "scdd",
        "pipeline_tag": "text-generation" if sheet.causal else "fill-mask",
        "tags": listed,
    }
    if not sheet.causal:
        front["mask_token"] = sheet.specials.mask[0]
    usage = f"{BEGIN}\n{_usage(sheet, transformers)}\n{END}"
    if BEGIN in body and END in body:  # a card of ours, written for another name
        before, _, rest = body.partition(BEGIN)
        body = f"{before.rstrip()}\n\n{usage}{rest.partition(END)[2]}"
    else:
        body = f"{body.strip() or _description(sheet)}\n\n{usage}\n"
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n{body.lstrip()}"


def parted(text: str) -> tuple[dict[str, Any], str]:
    """(Front matter, the rest) of a card; what is no front matter is the rest."""
    match = _FRONT.match(text)
    if match is None:
        return {}, text
    try:
        front = plain_yaml(match[1])
    except ValueError:
        return {}, text
    return (front, text[match.end() :]) if isinstance(front, dict) else ({}, text)


def _description(sheet: Sheet) -> str:
    network, data, training = (dict(each or {}) for each in (
        sheet.identity.network, sheet.recipe.get("data"), sheet.recipe.get("training")
    ))  # fmt: skip
    shape = f"{network.get('kind', 'dit')}, {network.get('depth')} blocks of width {network.get('width')}"
    rows = {
        "network": f"{shape}, {network.get('heads')} heads, {_time(network)}",
        "process": _process(sheet.process),
        "tokens": f"{sheet.identity.vocab.size:,} ids, the mask `{sheet.specials.mask[0]}` among them",
        "context": f"{sheet.context:,} tokens",
        "data": ", ".join(str(data[key]) for key in ("path", "name", "files") if data.get(key)) or None,
        "training": f"{sheet.identity.step:,} steps, {sheet.identity.tokens:,} tokens" if sheet.identity.step else None,
        "batch": f"{training['batch_size']:,} rows" if training.get("batch_size") else None,
        "weights": sheet.kind,
    }
    lines = [f"| {key} | {value} |" for key, value in rows.items() if value]
    title = sheet.recipe.get("name") or sheet.name
    kind = "An autoregressive language model" if sheet.causal else "A discrete diffusion language model"
    made = "trained with scdd; `recipe.yaml` says how" if sheet.identity.step else "written with scdd"
    return "\n".join([f"# {title}", "", f"{kind}, {made}.", "", "| | |", "|---|---|", *lines])


def _time(network: Mapping[str, Any]) -> str:
    if network.get("causal"):
        return "causal"
    return "told the time" if network.get("time_conditioning") else "not told the time"


def _process(process: Mapping[str, Any]) -> str:
    kind = str(process.get("kind"))
    schedule = dict(process.get("schedule") or {})
    details = ", ".join(f"{key} {value}" for key, value in schedule.items() if not isinstance(value, Mapping))
    return PROCESSES.get(kind, kind) + (f"; schedule: {details}" if details else "")


def _usage(sheet: Sheet, transformers: bool) -> str:
    verb = f"scdd sample --model {sheet.name}"
    parts = ["## How to use", ""]
    if transformers:
        parts += [
            "With transformers (the network's code lies beside the weights, hence `trust_remote_code`):",
            "",
            "```python",
            *(_causal_lines(sheet) if sheet.causal else _masked_lines(sheet)),
            "```",
            "",
        ]
    parts += ["With scdd, which has faster samplers, repair, evaluation and training:", "", "```", verb, "```"]
    return "\n".join(parts)


def _masked_lines(sheet: Sheet) -> list[str]:
    lines = [
        "from transformers import AutoModelForMaskedLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{sheet.name}", trust_remote_code=True)',
        f'model = AutoModelForMaskedLM.from_pretrained("{sheet.name}", trust_remote_code=True)',
    ]
    if sheet.process.get("kind") in ("scdd", "gidd", "mdlm"):
        steps = int(sheet.sampling.get("steps", 128))
        lines += [
            f"tokens = model.sample(length={min(128, sheet.context - 2)}, steps={steps})  # the reverse process, from all masks",
            "print(tokenizer.decode(tokens[0], skip_special_tokens=True))",
        ]
    if not (sheet.identity.network or {}).get("time_conditioning"):
        lines += [
            f'row = tokenizer("The river{sheet.specials.mask[0]} to the sea.", return_tensors="pt")',
            "logits = model(**row).logits  # of the clean token, at every position",
        ]
    return lines


def _causal_lines(sheet: Sheet) -> list[str]:
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{sheet.name}", trust_remote_code=True)',
        f'model = AutoModelForCausalLM.from_pretrained("{sheet.name}", trust_remote_code=True)',
        'start = tokenizer("The river", return_tensors="pt")',
        f"tokens = model.generate(**start, do_sample=True, max_new_tokens={min(64, sheet.context // 2)})",
        "print(tokenizer.decode(tokens[0], skip_special_tokens=True))",
    ]
