"""What happens around a call while somebody looks: hooks, ranges of a capture, a recording."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Coroutine
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.capture import recorder as _recorder
from rlprof.capture.annotate import annotate
from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import WrapError
from rlprof.overlap.remote import is_reference, when_ready

if TYPE_CHECKING:
    from rlprof.overlap.call_record import CallRecord
    from rlprof.overlap.node import ExecutionNode

_now_ns = time.monotonic_ns


class Observation:
    """What is open for one call."""

    __slots__ = ("range", "record")

    def __init__(self, record: CallRecord | None = None) -> None:
        self.range: Any = None
        self.record = record


def start(
    node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Observation:
    """Hooks before, the range of a capture, the record of the call, in this order."""
    program = node.program
    context.args, context.kwargs = args, kwargs
    if program.has_hooks:
        for hook in program.hooks_before(node):
            hook(context, args, kwargs)
    observation = Observation()
    run = context.run
    if run is None:
        run = program.new_run(node, context)
        if run is not None:
            context.run = run
    if _recorder.current is not None:
        observation.range = annotate(node.name).__enter__()
        context.range_thread = threading.get_ident()
    if run is not None:
        try:
            observation.record = record = run.open(node, context, args, kwargs)
        except BaseException:
            _close_range(observation)
            raise
        if run.has_devices:
            record.device = run.devices.mark()
        record.start_ns = _now_ns()
    return observation


def _close_range(observation: Observation) -> None:
    if observation.range is not None:
        observation.range.__exit__(None, None, None)
        observation.range = None


def end_call(
    node: ExecutionNode,
    context: CallContext,
    observation: Observation,
    result: Any,
    error: BaseException | None,
) -> None:
    """The reverse of `start`; hooks after see the result, or the error."""
    _end_record(context, observation, result, error)
    _end_rest(node, context, observation, result, error)


def _end_record(
    context: CallContext, observation: Observation, result: Any, error: BaseException | None
) -> None:
    record, run = observation.record, context.run
    if record is not None and run is not None:
        record.return_ns = _now_ns()
        if record.device is not None:
            run.devices.returned(record)
        run.close(record, result, error is not None)


def _end_rest(
    node: ExecutionNode,
    context: CallContext,
    observation: Observation,
    result: Any,
    error: BaseException | None,
) -> None:
    _close_range(observation)
    if node.program.has_hooks:
        for hook in node.program.hooks_after(node):
            hook(context, result, error)
    record = observation.record
    if record is not None and (record.parent is None or node.children):
        node.program.ended(node, context, error)


#: What most calls return: no coroutine, generator or future, so that nothing else has to be asked.
_RESULTS = frozenset({type(None), bool, int, float, str, bytes, tuple, list, dict, np.ndarray})


def observed(node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a node while somebody looks."""
    run = context.run
    if run is None or run.has_devices or node.program.has_hooks or _recorder.current is not None:
        return _observed(node, context, args, kwargs)
    # the same for a recorded call and nothing else, in fewer steps: the usual case
    context.args = args
    if kwargs:
        context.kwargs = kwargs
    record = run.open(node, context, args, kwargs)
    record.start_ns = _now_ns()
    try:
        result = node.switch.target(*args, **kwargs)
    except BaseException as error:
        end_call(node, context, Observation(record), None, error)
        raise
    if type(result) in _RESULTS:
        record.return_ns = _now_ns()
        run.close(record, result)
        context.args = ()
        if node.children:
            node.program.ended(node, context, None)
        return result
    return _returned(node, context, Observation(record), result)


def _observed(
    node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    observation = start(node, context, args, kwargs)
    try:
        result = node.switch.target(*args, **kwargs)
    except BaseException as error:
        end_call(node, context, observation, None, error)
        raise
    return _returned(node, context, observation, result)


def _returned(node: ExecutionNode, context: CallContext, observation: Observation, result: Any) -> Any:
    """End a call that has returned, now or when its result is there."""
    if type(result) is CoroutineType:
        context.pending = observation
        return result
    if isinstance(result, (GeneratorType, AsyncGeneratorType)) and observation.record is not None:
        refusal = WrapError(
            f"node {node.path} returned a generator in {context.label}: its code runs after the call",
            hint="wrap what the generator calls, or return a list",
        )
        end_call(node, context, observation, None, refusal)
        raise refusal
    if isinstance(result, concurrent.futures.Future) or asyncio.isfuture(result) or is_reference(result):
        _leave_open(node, context, observation, result)
        return result
    end_call(node, context, observation, result, None)
    return result


async def observed_coroutine(
    node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Await a node whose entry is a coroutine function."""
    observation = start(node, context, args, kwargs)
    try:
        result = node.switch.target(*args, **kwargs)
        if isinstance(result, Coroutine):
            result = await result
    except BaseException as error:
        end_call(node, context, observation, None, error)
        raise
    end_call(node, context, observation, result, None)
    return result


async def finish(node: ExecutionNode, context: CallContext, coroutine: CoroutineType[Any, Any, Any]) -> Any:
    """Await what a plain callable has returned."""
    observation, context.pending = context.pending, None
    try:
        result = await coroutine
    except BaseException as error:
        if observation is not None:
            end_call(node, context, observation, None, error)
        raise
    if observation is not None:
        end_call(node, context, observation, result, None)
    return result


def _leave_open(node: ExecutionNode, context: CallContext, observation: Observation, future: Any) -> None:
    """Let a call end when its future does."""
    node.gives_futures = True
    _close_range(observation)  # in the thread in which it began: it shows the submission
    run = context.run

    def done(value: Any, error: BaseException | None) -> None:
        if run is not None:
            # one step, so that whoever has waited for the value finds it recorded
            with run.lock:
                if not run.take_pending(future):
                    return
                _end_record(context, observation, value, error)
        _end_rest(node, context, observation, value, error)

    if run is not None and observation.record is not None:
        run.add_pending(future, observation.record, done)
    when_ready(future, done)
