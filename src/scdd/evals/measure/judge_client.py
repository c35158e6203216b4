"""Questions to a language model over HTTP: asked once, kept on disk, parsed strictly, asked again when the answer is no answer."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError, missing_extra, reason
from scdd.evals.measure.progress import Watch, unwatched

USUAL_ADDRESS = "https://api.openai.com/v1"
ASPECTS = ("clarity", "grammaticality", "factuality", "style", "creativity")
Parse = Callable[[str], Any]
"""Plain data from an answer; raises ValueError with what is wrong."""


@dataclass(frozen=True)
class JudgeServer:
    """Who is asked, and how. `base_url` None is the client's own default; the key comes from OPENAI_API_KEY."""

    model: str
    base_url: str | None = None
    temperature: float | None = 0.0
    attempts: int = 3
    workers: int = 8
    timeout: float = 120.0

    @property
    def address(self) -> str | None:
        """Where the client will ask; None is its usual address, however that was named."""
        named = self.base_url or os.environ.get("OPENAI_BASE_URL") or USUAL_ADDRESS
        return None if named.rstrip("/") == USUAL_ADDRESS else named.rstrip("/")


class JudgeClient:
    """Asks, and remembers every good answer in a JSON-lines file under a hash of the question."""

    def __init__(self, server: JudgeServer, memory: Path) -> None:
        self.server, self.memory = server, memory
        self._lock = threading.Lock()
        self._known = _remembered(memory)
        self._client: Any = None

    def known(self, prompt: str) -> bool:
        """Whether asking costs nothing."""
        return self._key(prompt) in self._known

    def ask(self, prompts: Sequence[str], parse: Parse, watch: Watch = unwatched) -> list[Any]:
        """Parsed answers, in order; several are asked at a time, and the same question once."""

        def one(prompt: str) -> Any:
            answer = self._ask(prompt, parse)
            with self._lock:
                watch(1)
            return answer

        different = list(dict.fromkeys(prompts))
        with ThreadPoolExecutor(self.server.workers) as pool:
            answers = dict(zip(different, pool.map(one, different), strict=True))
        watch(len(prompts) - len(different))
        return [answers[prompt] for prompt in prompts]

    def _ask(self, prompt: str, parse: Parse) -> Any:
        key = self._key(prompt)
        if key in self._known:
            return parse(self._known[key])
        question = {"role": "user", "content": prompt}
        messages, wrong = [question], ""
        for _ in range(self.server.attempts):
            answer = self._complete(messages)
            try:
                data = parse(answer)
            except ValueError as error:
                wrong = str(error)
                again = (
                    f"That was not the JSON that was asked for ({wrong}). Answer again with the JSON and nothing else."
                )
                messages = [question, {"role": "assistant", "content": answer}, {"role": "user", "content": again}]
            else:
                self._keep(key, answer)
                return data
        raise UserError(
            f"The judge {self.server.model} gave no usable answer in {self.server.attempts} attempts ({wrong}): "
            "use a model that follows instructions; what was answered so far is kept."
        )

    def _complete(self, messages: list[dict[str, str]]) -> str:
        try:
            import openai
        except ImportError as error:
            raise UserError(missing_extra("The LLM judge needs openai", "eval")) from error
        try:
            with self._lock:
                if self._client is None:
                    self._client = openai.OpenAI(base_url=self.server.base_url, timeout=self.server.timeout)
            heat = self.server.temperature
            options: dict[str, Any] = {} if heat is None else {"temperature": heat}
            answer = self._client.chat.completions.create(model=self.server.model, messages=messages, **options)
        except openai.OpenAIError as error:  # the client has already tried again where that may help
            raise UserError(
                f"The judge at {self.server.base_url or 'the default address'} refused ({reason(error)}): check the address, "
                "OPENAI_API_KEY and the model's name; what was answered so far is kept."
            ) from error
        return str(answer.choices[0].message.content or "")

    def _key(self, prompt: str) -> str:
        asked: list[Any] = [self.server.model, self.server.temperature, prompt]
        if self.server.address is not None:  # the usual one is left out, as in older files
            asked.append(self.server.address)
        text = json.dumps(asked, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _keep(self, key: str, answer: str) -> None:
        with self._lock:
            self._known[key] = answer
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"key": key, "answer": answer}, ensure_ascii=False).encode() + b"\n"
            with self.memory.open("ab+") as file:
                cut = file.tell() and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"  # by a kill
                file.write(b"\n" + line if cut else line)


def _remembered(memory: Path) -> dict[str, str]:
    """Answers kept so far; a line that was cut short by a kill is left out, and asked again."""
    answers = {}
    # by "\n" alone, as it was written: answers may hold other ends of lines
    for line in memory.read_bytes().split(b"\n") if memory.is_file() else ():
        with suppress(ValueError, KeyError, TypeError):
            item = json.loads(line)
            answers[item["key"]] = item["answer"]
    return answers


def _object(answer: str) -> dict[str, Any]:
    """The JSON object that an answer is, a code fence around it allowed and nothing else."""
    text = answer.strip()
    if text.startswith("```"):
        text = text.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data


def parse_scores(answer: str) -> dict[str, float]:
    """The five scores of Figure `fig:evaluation_prompt`, each from 1 to 10."""
    graded = _object(answer)
    if set(graded) != set(ASPECTS):
        raise ValueError(f"the keys are {', '.join(graded)} and not {', '.join(ASPECTS)}")
    scores = {}
    for aspect in ASPECTS:
        grade = graded[aspect]
        score = grade.get("score") if isinstance(grade, dict) else None
        if isinstance(score, bool) or not isinstance(score, int | float) or not 1 <= score <= 10:
            raise ValueError(f"{aspect} has no score from 1 to 10")
        scores[aspect] = float(score)
    return scores


def parse_winner(answer: str) -> str:
    """A, B or tie."""
    winner = _object(answer).get("winner")
    if winner not in ("A", "B", "tie"):
        raise ValueError("winner is not A, B or tie")
    return str(winner)
