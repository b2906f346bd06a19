"""The prover under hard limits: one long-lived process for many rules, killed when a rule exceeds them.

Z3 does not always honour limits of its own, and normal forms can explode before it is called.  The whole prover
therefore runs in a process with limits on memory and on processor time, enforced from here.  Processor time does not
depend on whether the machine is busy or was suspended.  A rule or a statement that exceeds a limit is UNKNOWN with the
limit as its cause; the next one gets a new process.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar

from rewrites.language.show import rule_key, show
from rewrites.language.term import Rule
from superopt.errors import DEFECT, ProverDefectError, VerificationError
from superopt.machine.deadline import Deadline
from superopt.machine.facts import usable_cores
from superopt.workshop import forks
from superopt.workshop.job import Event, Job, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker
from verifier.verdict import UNKNOWN, Verdict, decode

T = TypeVar("T")
R = TypeVar("R")
SECONDS = 60.0
MEMORY_BYTES = 4 << 30
_START_S = 60.0
_MOST_PROVERS, _RULES_EACH = 4, 8  # most provers, and rules for each; one takes half a second to start
LIMIT = "the prover's limit"


class LimitExceededError(Exception):
    """Raised when the prover's process exceeds a limit, lacks a package or dies, or the prover fails."""


class Prover:
    """The prover in a process of its own; use it as a context manager, or close it.

    Args:
        seconds: limit of processor time for one rule; that of wall time is `WAITS` times as much.
        memory_bytes: limit of the process's memory.

    Attributes:
        turn: lock held during a request; a caller may hold it for several requests in a row, to measure their time.
    """

    def __init__(self, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self.seconds, self.memory_bytes = seconds, memory_bytes
        # a forking process loads JAX, which takes longer than a fresh interpreter that loads the prover alone
        self._worker = Worker(
            ProcessLimits(_START_S, memory_bytes), loads="verifier.rules.judging:load", forked=forks.at_work()
        )
        self.turn = threading.RLock()

    def check(self, rule: Rule, direction: str = "forward") -> Verdict:
        """The verdict on one direction of a rule, UNKNOWN where a limit was exceeded.

        Raises:
            VerificationError: the rule is proved and refuted at once.
        """
        return self._judged(rule, direction, alone=False)

    def prove(self, rule: Rule, direction: str = "forward") -> Verdict:
        """The prover's verdict alone, UNKNOWN where a limit was exceeded."""
        return self._judged(rule, direction, alone=True)

    def call(self, target: str, *arguments: Any, path: str | None = None, seconds: float = 0.0) -> Any:
        """Call `module:function` on JSON values inside the process; `seconds`, if given, replaces the usual limit.

        Raises:
            LimitExceededError: the call took too much time or memory.
        """
        data = {"target": target, "arguments": arguments, "path": path}
        return self._ask(Job("validate", "verifier.rules.judging:call", data), seconds)["result"]

    def _judged(self, rule: Rule, direction: str, *, alone: bool) -> Verdict:
        key = rule_key(rule)
        data = {"rule": show(rule), "key": key, "direction": direction, "alone": alone}
        try:
            event = self._ask(Job("validate", "verifier.rules.judging:judge", data))
        except LimitExceededError as limit:
            return Verdict(rule.name, key, rule.where, direction, UNKNOWN, cause=str(limit), seconds=self.seconds)
        if event["event"] == "defect":
            raise ProverDefectError(event["message"].removeprefix(DEFECT), hint=event["hint"])
        if event["event"] == "error":
            raise VerificationError(event["message"], hint=event["hint"])
        return replace(decode(event["verdict"]), where=rule.where)

    @property
    def processor_s(self) -> float:
        """Processor time of the running process so far."""
        return self._worker.processor_s

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def __enter__(self) -> Prover:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, job: Job, seconds: float = 0.0) -> Event:
        """Return the worker's answer to a job, within its limits of time and memory."""
        seconds = seconds or self.seconds
        with self.turn:
            try:
                started = self._worker.started
                self._worker.limits = ProcessLimits(_START_S, self.memory_bytes, processor=True)
                if not started or not self._worker.alive:
                    self._worker.ready()  # imports do not count as time of the rule
                self._worker.limits = ProcessLimits(seconds, self.memory_bytes, processor=True)
                (event,) = self._worker.request(job)
            except RecursionError as deep:
                raise LimitExceededError("it is nested too deeply to be written down") from deep
            except WorkerDiedError as died:
                failure = died.failure
                if failure.cause == "timeout":
                    raise LimitExceededError(f"{LIMIT} of {seconds:g} s was reached") from died
                raise LimitExceededError(f"the prover's process ended: {failure.cause}: {failure.detail}") from died
        if event["event"] == "deep":
            raise LimitExceededError("it is nested too deeply for the prover")
        if event["event"] == "absent":
            raise LimitExceededError(f"a package that its evaluation needs is not there: {event['message']}")
        if event["event"] == "fault":
            lines = [line.strip() for line in event["traceback"].splitlines() if line.strip()]
            places = [line for line in lines if line.startswith("File ")]
            place = places[-1].replace('"', "") if places else "an unknown place"
            raise LimitExceededError(f"the prover failed, please report it: {lines[-1]} ({place})")
        return event


def check_all(rules: Sequence[Rule], provers: int = 0, end_s: float = math.inf) -> list[Verdict]:
    """The forward verdict on each rule, from as many provers at once as there are cores, four at most.

    The first is the shared one; the others start where there is work for them, and end with it.

    Args:
        rules: the rules.
        provers: number of provers, in place of that default.
        end_s: instant of a deadline, from which on no proof is begun; the remaining rules are UNKNOWN.

    Raises:
        VerificationError: a rule is proved and refuted at once.
    """
    wanted = provers or min(_MOST_PROVERS, usable_cores())

    def check(prover: Prover, rule: Rule) -> Verdict:
        if Deadline(end_s).is_over:
            return Verdict(
                rule.name, rule_key(rule), rule.where, "forward", UNKNOWN, cause="no time was left to prove it"
            )
        return prover.check(rule)

    # the longest rules come first, to balance the provers; with a deadline the shortest do, so that most are proved
    sign = -1 if end_s == math.inf else 1
    order = sorted(range(len(rules)), key=lambda i: sign * len(show(rules[i])))
    with ExitStack() as stack:
        count = max(1, min(wanted, len(rules) // _RULES_EACH))
        own = [stack.enter_context(Prover()) for _ in range(count - 1)]
        verdicts = {order[n]: verdict for n, verdict in each([rules[i] for i in order], check, [shared(), *own])}
    return [verdicts[i] for i in range(len(rules))]


def each(items: Sequence[T], ask: Callable[[Prover, T], R], provers: Sequence[Prover]) -> Generator[tuple[int, R]]:
    """Yield the answers about all items, with their numbers, as they come; an idle prover takes the next item."""
    idle: SimpleQueue[Prover] = SimpleQueue()
    for prover in provers:
        idle.put(prover)

    def one(item: T) -> R:
        prover = idle.get()
        try:
            return ask(prover, item)
        finally:
            idle.put(prover)

    executor = ThreadPoolExecutor(len(provers))
    try:
        numbers = {executor.submit(one, item): n for n, item in enumerate(items)}
        for answer in as_completed(numbers):
            yield numbers[answer], answer.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)  # closing the provers ends requests that still run


_SHARED: list[Prover] = []
_STARTING = threading.Lock()


def shared() -> Prover:
    """The prover shared by this process, started at its first request and ended with the process."""
    with _STARTING:
        if not _SHARED:
            _SHARED.append(Prover())
            atexit.register(_SHARED[0].close)
    return _SHARED[0]


def processor_s() -> float:
    """Processor time in seconds of this process, of its finished children, and of its prover."""
    used = os.times()
    own = used.user + used.system + used.children_user + used.children_system
    return own + sum(prover.processor_s for prover in _SHARED)
