"""Run as a script by test_huggingface: loads exported folders with transformers alone and notes what they give.

python without_scdd.py FOLDER     reads FOLDER/cases.json and FOLDER/inputs.pt, writes FOLDER/found.pt
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


class Blocked:
    """An import hook that knows no scdd."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "scdd":
            raise ImportError("scdd must not be needed here")


sys.meta_path.insert(0, Blocked())

import torch  # noqa: E402
import transformers  # noqa: E402


def most(model: Any, told: dict[str, torch.Tensor]) -> tuple[torch.Tensor, str]:
    """(Logits of the longest row that the model takes, what it says of a longer one)."""
    generator = torch.Generator().manual_seed(3)
    row = torch.randint(
        0, model.config.vocab_size - 1, (1, model.config.max_position_embeddings + 1), generator=generator
    )
    told = {name: value[:1] for name, value in told.items()}
    try:
        model(row, **told)
    except ValueError as refusal:
        return model(row[:, :-1], **told).logits, str(refusal)
    return model(row[:, :-1], **told).logits, ""


def attempt(case: dict[str, Any], inputs: dict[str, torch.Tensor], place: Path) -> dict[str, Any]:
    auto = transformers.AutoModelForCausalLM if case["causal"] else transformers.AutoModelForMaskedLM
    dtype = "torch_dtype" if transformers.__version__.startswith("4.") else "dtype"
    model = auto.from_pretrained(case["folder"], trust_remote_code=True, **{dtype: torch.float32}).eval()
    ids, told = inputs["ids"], {"t": inputs["t"]} if case["time"] else {}
    plain = model(ids, **told)
    labelled = model(ids, labels=inputs["labels"], **told)
    real = torch.ones_like(ids)
    real[0, 7:] = 0
    found = {
        "logits": plain.logits,
        "as_tuple": model(ids, return_dict=False, **told)[0],
        "loss": labelled.loss,
        "padded": model(ids, attention_mask=real, **told).logits[:1, :7],
        "alone": model(ids[:1, :7], **{k: v[:1] for k, v in told.items()}).logits,
    }
    found["longest"], found["refused"] = most(model, told)
    labelled.loss.backward()
    found["gradient"] = torch.tensor(all(p.grad is not None for p in model.parameters()))
    model.save_pretrained(place)
    again = auto.from_pretrained(place, trust_remote_code=True)
    found["again"] = again(ids, **told).logits
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["folder"], trust_remote_code=case["causal"])
    tokenizer.save_pretrained(place)
    found["text"] = tokenizer(case["text"]).input_ids
    found["tokens"] = [getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "mask", "pad")]
    exec(case["code"], {})  # what the card shows
    if case["causal"]:
        found["generated"] = model.generate(ids[:, :4], do_sample=False, max_new_tokens=5)
        prompts = ["The river", "The river runs to"]
        together = tokenizer(prompts, padding=True, return_tensors="pt")
        found["written"] = [
            [
                tokenizer.decode(row, skip_special_tokens=True)
                for row in model.generate(**each, do_sample=False, max_new_tokens=5)
            ]
            for each in (together, *(tokenizer(prompt, return_tensors="pt") for prompt in prompts))
        ]
    else:
        found["drawn"] = [
            model.sample(12, 5, num=3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
        ]
        found["filled"] = model.sample(input_ids=ids, steps=4)
        found["usual"] = model.sample()
    return found


def main(folder: Path) -> None:
    os.chdir(folder)  # where cards call the folders by their names
    inputs = torch.load(folder / "inputs.pt", weights_only=True)
    cases = json.loads((folder / "cases.json").read_text())
    found = {case["name"]: attempt(case, inputs, folder / f"again-{case['name']}") for case in cases}
    torch.save({"version": transformers.__version__, **found}, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
