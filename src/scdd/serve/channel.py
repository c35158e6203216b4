"""Messages between the process that computes and those that talk HTTP: pickled tuples, each after its length, on a pair of sockets.

The sockets have no name: nobody but our own processes can write to them, and what they write are objects that they have made and checked
themselves, never a client's bytes as they came. Pickle keeps tokens, plans and results as they are, in a few microseconds; JSON would take longer for
the lists, and need a second description of every option.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum, auto
from typing import Any

HEAD = struct.Struct("!I")
PIECE = 1 << 18  # bytes that are read at once
BACKLOG = 1 << 26  # bytes that wait for a reader; one that is so far behind stands still


class Kind(IntEnum):
    """What a message is about: its first item. To the process that computes, then to those that talk HTTP."""

    READY = auto()  # it takes connections
    ASK = auto()  # number of the first job, when it came, whether it is watched, orders: all of them or none
    DROP = auto()  # number: nobody waits for it any more
    WAITING = auto()  # number: how many jobs wait?
    METRICS = auto()  # number: the page of all meters
    METERS = auto()  # round, families; and the question itself, round
    SETTING = auto()  # what a front must know, before anything else
    GO = auto()  # take connections
    TAKEN = auto()  # number of the first job
    STEP = auto()  # number, step
    DONE = auto()  # number, answer
    FAILED = auto()  # number, refusal
    GIVEN = auto()  # number, answer to WAITING and METRICS
    DRAIN = auto()  # take no connections, answer what was taken, and end
    QUIT = auto()  # the same without waiting


Message = tuple[Any, ...]


def packed(message: Message) -> bytes:
    """A message as it is sent."""
    # a bare number: members of an enumeration are pickled by name
    data = pickle.dumps((int(message[0]), *message[1:]), 5)
    return HEAD.pack(len(data)) + data


class Unpacker:
    """Messages out of bytes as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def messages(self, data: bytes) -> Iterator[Message]:
        """All that are complete now."""
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= HEAD.size:
            end = at + HEAD.size + HEAD.unpack_from(rest, at)[0]
            if len(rest) < end:
                break
            message = pickle.loads(memoryview(rest)[at + HEAD.size : end].tobytes())
            at = end
            yield message
        del rest[:at]


def first(sock: socket.socket) -> Message:
    """The first message, and nothing after it; whoever sends it may still be about to. EOFError: it has ended instead."""
    size = HEAD.unpack(_exactly(sock, HEAD.size))[0]
    message: Message = pickle.loads(_exactly(sock, size))
    return message


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (piece := sock.recv(min(PIECE, size - len(data)))):
            raise EOFError
        data += piece
    return bytes(data)


class Sender:
    """Sends from any thread and never waits: what does not fit into the socket at once goes from a thread of its own."""

    def __init__(self, sock: socket.socket, most: int = BACKLOG) -> None:
        """`most`: bytes that may wait."""
        self._socket, self._lock, self._most = sock, threading.Lock(), most
        self._later: list[bytes] = []
        self._busy, self._size = False, 0

    def send(self, message: Message) -> None:
        """After all that was sent before. What the other side has not read when it ends is lost with it.

        Where more would wait than may, the channel is shut: both sides read its end.
        """
        data = packed(message)
        with self._lock:
            if self._busy:
                self._later.append(data)
                self._size += len(data)
                if self._size > self._most:
                    self._later, self._size = [], 0
                    with contextlib.suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                return
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:  # it has ended, which whoever reads from it learns
                return
            if sent == len(data):
                return
            self._later.append(data[sent:])
            self._busy = True
        threading.Thread(target=self._rest, name="scdd-sender", daemon=True).start()

    def _rest(self) -> None:
        while True:
            with self._lock:
                data, self._later, self._size = b"".join(self._later), [], 0
                self._busy = bool(data)
            if not data:
                return
            with contextlib.suppress(OSError):
                self._socket.sendall(data)
