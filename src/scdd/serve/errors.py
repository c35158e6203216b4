"""Errors in the API's own shape: `{"error": {"message", "type", "param", "code"}}`, as OpenAI's clients read it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from scdd.core.errors import UserError

log = logging.getLogger("scdd.serve")
TASKS = ("generate", "infill", "correct")
LONGEST = 300  # characters of a message, which may quote what was sent


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """Every error looks like this."""

    error: ErrorBody


class ApiError(Exception):
    """An answer other than the one that was hoped for."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> JSONResponse:
        """The error as an answer."""
        return JSONResponse(self.body, self.status, self.headers)


def busy(waiting: int, retry_after: int) -> ApiError:
    """The queue is full, or too long for an answer in time."""
    message = (
        f"The server is busy: {waiting} {'job' if waiting == 1 else 'jobs'} in the queue; try again in {retry_after} s."
    )
    headers = {"Retry-After": str(retry_after)}
    return ApiError(429, message, "rate_limit_error", code="rate_limit_exceeded", headers=headers)


def late(seconds: float) -> ApiError:
    """The time limit has passed."""
    message = f"The answer was not ready within {seconds:g} s: ask for fewer steps, tokens or texts."
    return ApiError(504, message, "timeout_error", code="timeout")


def unfinished() -> ApiError:
    """The request has not come in time."""
    message = "The request was not complete in time: send its head and its body without a pause."
    return ApiError(408, message, "timeout_error", code="request_timeout")


def full() -> ApiError:
    """No connection is left, and each is in use."""
    headers = {"Retry-After": "5", "Connection": "close"}
    message = "The server has as many connections as it can: try again in 5 s."
    return ApiError(503, message, "server_error", code="too_many_connections", headers=headers)


def stopping() -> ApiError:
    """The server is going down."""
    return ApiError(503, "The server is shutting down.", "server_error", code="draining", headers={"Retry-After": "10"})


def lost() -> ApiError:
    """The copy of the model that had the request has died, or there is none just now."""
    message = "The part of the server that had this request is gone: send it again."
    return ApiError(503, message, "server_error", code="replica_lost", headers={"Retry-After": "1"})


def as_api_error(error: BaseException) -> ApiError:
    """Any exception as an answer. A bug keeps its traceback in the log and its details out of the answer."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, short(str(error)), param=error.option, code="invalid_value")
    if isinstance(error, RequestValidationError):
        message, param = explain(error.errors(), error.body)
        return ApiError(400, message, param=param, code="invalid_value")
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        headers = dict(error.headers) if error.headers else {}
        said = {
            400: "The body is not valid JSON.",  # in UTF-8, not too deep, no number of thousands of digits
            404: "There is nothing here: /docs lists what there is.",
            405: f"This place does not take that method: use {headers.get('Allow', 'another')}.",
        }.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, said, code=code, headers=headers)
    log.error("A request failed", exc_info=error)
    return ApiError(500, "The server made a mistake; its log says which.", "server_error", code="internal_error")


def install(app: FastAPI) -> None:
    """Answer every kind of exception in the same shape; bugs are for `Guard`, which sees all of them."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    for kind in (ApiError, UserError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def explain(errors: Sequence[Any], body: Any = None) -> tuple[str, str | None]:
    """(One sentence, the field's name) for the first mistake. `body`: as it was read; bytes, if it was not read as JSON."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return "The body is not valid JSON.", None
    field = _field(first)
    if field is None and (isinstance(body, bytes) or first["type"] == "missing"):
        return "There is no JSON body: send one, with the header Content-Type: application/json.", None
    if field is None and not isinstance(body, dict):
        return 'The body is no JSON object: send one, as in {"prompt": "…"}.', None
    # A choice of types gives an error for each of them; the last one knows most about an object's inside.
    found = [error for error in errors if _field(error) == field]
    given = body.get(field) if isinstance(body, dict) and field else None
    other = "list_type" if isinstance(given, str) else "string_type"  # of what it was not meant to be
    kinds = {error["type"] for error in found if len(_place(error)) <= 2}
    if field and kinds >= {"string_type", "list_type"} and not isinstance(given, str | list):
        return f"{field}: it should be a text, or a list of texts.", field
    best = next((error for error in reversed(found) if error["type"] != other or len(_place(error)) > 2), first)
    place = _place(best)
    last = place[-1] if place else ""
    inside = len(place) > 1 and last.isidentifier() and last not in ("str", "int", "float", "bool")
    param = f"{field}.{last}" if field and inside else field
    number = next((part for part in place[1:] if part.isdecimal()), None)
    if field and number is not None and not inside and isinstance(body, dict) and isinstance(body.get(field), list):
        param = f"{field}[{number}]"
    match best["type"]:
        case "string_too_short" | "too_short" if best.get("input") == "":
            return f"{param} is empty: give at least a word.", param
        case "too_short" if best.get("input") == []:
            return f"{param} is empty: give at least one.", param
        case "missing":
            return f"{param} is missing.", param
        case "extra_forbidden":
            return f"{short(str(param))} is not known here: /docs lists the fields.", param
        case "union_tag_not_found" | "union_tag_invalid":
            name = f"{param}.kind" if param else "task"
            cure = best["ctx"].get("expected_tags") or "those that /docs lists"
            return f"{name} is missing or wrong: choose one of {cure}.", param or name
        case "model_attributes_type" | "dict_type" | "dataclass_type":
            return f"{param}: it should be an object, {{…}}.", param
    message = short(str(best["msg"]).removeprefix("Value error, ").replace("Input should", "it should"))
    return (f"{param}: {message}." if param else f"The body is wrong: {message}."), param


def short(message: str) -> str:
    """A message without the middle of a long one: the mistake is named at its beginning, the cure at its end."""
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST // 3]} … {message[-2 * LONGEST // 3 :]}"


def _place(error: Any) -> list[str]:
    """The keys that lead to what an error is about; the task of a stream's body is none of them."""
    place = [str(part) for part in error["loc"] if part != "body"]
    return place[1:] if place[:1] and place[0] in TASKS else place


def _field(error: Any) -> str | None:
    """The field of the body that an error is about."""
    place = _place(error)
    return place[0] if place else None


def beyond(name: str, found: str, most: int) -> ApiError:
    """Something is beyond a limit."""
    message = f"{name} {found}, and this server allows {most}."
    return ApiError(400, message, param=name, code="limit_exceeded")
