"""Nodes of the execution hierarchy: callables that stand in front of the native ones (Rose, section 4.2.1).

A call of a node follows one path: hooks before, the graph table, the replacement if there is one and the
native entry if not, never both, hooks after, the result through the original interface.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlprof.overlap.calling import Switch, make_call, make_coroutine_call
from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import WrapError
from rlprof.overlap.iterations import Iterations
from rlprof.overlap.remote import callable_of, owner_of, parameters_of, rebound
from rlprof.overlap.specs import ROLES, BatchSpec, NodeSpec, Role
from rlprof.overlap.state import Access

if TYPE_CHECKING:
    from rlprof.overlap.program import Program

Entry = Callable[..., Any]


class ExecutionNode:
    """A block of a component worker: what is called is the node, what it does is its entry.

    Parameters
    ----------
    parent : ExecutionNode, Program or None
        The node whose entry makes these calls; a program (or None, for a program of its own) for the root.
    entry : callable
        Function, bound method, coroutine function, something that returns futures, or a remote method (of a
        Ray actor, of a `LocalWorker`). It is never replaced: `entry` stays the native one.
    *accesses : Access or tuple of Access
        What `reads`, `updates` and `refreshes` return.
    name : str, optional
        Unique below the parent; by default that of the entry.
    component : str, optional
        Component worker; by default the class of the object that the entry is bound to, else the parent's.
    stateless : bool
        It uses no state. A node that declares nothing counts as an update of its whole component.
    batch : BatchSpec, optional
        How its batch may be cut.
    resources : iterable of str
        Further things that serve one call at a time.
    role : {"", "sync", "update"}
        A boundary of training.
    movable : bool
        Rewire may move it.
    copy_argument : str or mapping of str to str, optional
        Parameter that takes the object of a state, for calls on a spare copy of it: one for all states, or by
        state. Not needed where the object is the one that the entry is bound to.

    Raises
    ------
    WrapError
        If the declaration cannot work; it names node and state.
    """

    kind: str = "plain"
    name: str
    path: str
    parent: ExecutionNode | None
    native: Any
    is_loop: bool
    is_marked: bool
    #: Iterations of a loop in one call of the parent; None: not fixed, or no loop.
    count: int | None = None

    def __init__(
        self,
        parent: ExecutionNode | Program | None,
        entry: Entry,
        *accesses: Access | tuple[Access, ...],
        name: str | None = None,
        component: str | None = None,
        stateless: bool = False,
        batch: BatchSpec | None = None,
        resources: Iterable[str] = (),
        role: Role = "",
        movable: bool = True,
        copy_argument: str | Mapping[str, str] | None = None,
    ) -> None:
        from rlprof.overlap.program import Program

        native: Any = entry.native if isinstance(entry, ExecutionNode) else entry
        self.is_loop = self.kind == "loop"
        found = name or _name_of(native)
        if not isinstance(found, str) or not found.strip() or any(c in found for c in "/[]#@"):
            raise WrapError(
                f"{found!r} cannot name a node", hint='give a name without / [ ] # @, such as "infer"'
            )
        above = parent if isinstance(parent, ExecutionNode) else None
        if above is None and parent is not None and not isinstance(parent, Program):
            raise WrapError(
                f"the parent of node {found} is a value of type {type(parent).__name__}",
                hint="give a node, or a Program for the root",
            )
        if native is None and not self.is_loop:
            raise WrapError(
                f"node {found} has no entry",
                hint="give a function or a bound method; iterations are marked by a LoopNode",
            )
        self.name = found
        self.parent = above
        self.path = found if above is None else f"{above.path}/{found}"
        program = above.program if above is not None else parent
        self.program: Program = program if isinstance(program, Program) else Program()
        self.native = native
        self.accesses = tuple(
            a for group in accesses for a in (group if isinstance(group, tuple) else (group,))
        )
        for access in self.accesses:
            if not isinstance(access, Access):
                raise WrapError(
                    f"node {self.path} declares a value of type {type(access).__name__}",
                    hint="use reads(...), updates(...) and refreshes(...)",
                )
        if stateless and self.accesses:
            raise WrapError(
                f"node {self.path} is stateless and declares {self.accesses[0].name}",
                hint="say one or the other",
            )
        if role not in ROLES:
            raise WrapError(f"node {self.path} has the role {role!r}", hint='give "update", "sync" or none')
        if batch is not None and not isinstance(batch, BatchSpec):
            raise WrapError(f"node {self.path} has the batch {batch!r}", hint="give batch=Batch(...)")
        if isinstance(resources, str):
            raise WrapError(
                f"node {self.path} has the resources {resources!r}", hint=f'give a tuple: ("{resources}",)'
            )
        self.is_stateless = stateless
        self.batch = batch
        self.resources = tuple(resources)
        self.role = role
        self.movable = movable
        self.copy_argument = copy_argument
        self.children: list[ExecutionNode] = []
        self.is_marked = native is None
        self._component = component
        self._entry = None if native is None else callable_of(native, self.path)
        self.parent_path = None if above is None else above.path
        #: Calls that are going on.
        self.running: set[CallContext] = set()
        self.switch = Switch(self._entry if self._entry is not None else _no_entry)
        #: Seen to return futures or references.
        self.gives_futures = False
        if native is not None:
            functools.update_wrapper(self, native, updated=())
        self.parameters = () if native is None else parameters_of(native)
        self._check_batch()
        is_coroutine = native is not None and inspect.iscoroutinefunction(native)
        #: What runs at a call; as a function of its own it can stand in place of a method.
        self.call: Entry = (make_coroutine_call if is_coroutine else make_call)(self, self.switch)
        self.program.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def __reduce__(self) -> Any:
        raise WrapError(
            f"node {self.path} cannot be copied or pickled",
            hint="copy objects before their methods are wrapped, or unwrap them first",
        )

    @property
    def entry(self) -> Entry:
        """The native callable, as it can be called: for a Ray method its ``remote``."""
        if self._entry is None:
            raise WrapError(f"node {self.path} marks a loop and has no entry")
        return self._entry

    @property
    def owner(self) -> Any:
        """The object that the entry is bound to, None for a function."""
        return owner_of(self.native)

    @property
    def remote(self) -> ExecutionNode:
        """The node itself, so that code which calls ``handle.method.remote(...)`` stays as it is."""
        return self

    @property
    def component(self) -> str:
        """Component worker that runs it."""
        return self._component or self.program.component_of(self)

    @property
    def loop_level(self) -> int:
        """As `NodeSpec.loop_level`."""
        above = self.parent
        while above is not None and not above.is_loop:
            above = above.parent
        outer = -1 if above is None else above.loop_level
        return outer + 1 if self.is_loop else max(outer, 0)

    @property
    def spec(self) -> NodeSpec:
        """What is known of the node without running it."""
        return NodeSpec(
            path=self.path,
            parent=self.parent_path,
            kind="loop" if self.is_loop else "plain",
            count=self.count,
            loop_level=self.loop_level,
            component=self.component,
            accesses=tuple(a.spec for a in self.accesses),
            declared=bool(self.accesses) or self.is_stateless or self.is_marked,
            batch=self.batch,
            resources=self.resources,
            role=self.role,
            movable=self.movable,
            marked=self.is_marked,
            parameters=self.parameters,
        )

    def rebind(self, copies: Mapping[str, int]) -> Entry:
        """Return the entry that works on the given storage copies.

        Parameters
        ----------
        copies : mapping of str to int
            Copy by state; copy 0 is the native object.

        Raises
        ------
        WrapError
            If there is no such copy, or the entry does not get the object from anywhere that can be changed.
        """
        entry, given = self.entry, {}
        for name, copy in copies.items():
            if copy == 0:
                continue
            state = self.program.states[name]
            if not 0 < copy <= len(state.copies):
                raise WrapError(
                    f"node {self.path} needs copy {copy} of state {name}, which has {len(state.copies)}",
                    hint=f'give State("{name}", ..., copies=[...]) spare objects',
                )
            spare = state.copies[copy - 1]
            if state.obj is not None and state.obj is self.owner:
                entry = rebound(self.native, spare, self.path)
                continue
            argument = self.copy_argument
            parameter = argument.get(name) if isinstance(argument, Mapping) else argument
            if parameter is None:
                raise WrapError(
                    f"node {self.path} cannot be run on a copy of state {name}: its entry is not bound to it",
                    hint="give copy_argument, the parameter that takes the object",
                )
            given[parameter] = spare
        return functools.partial(entry, **given) if given else entry

    # calls -------------------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the node, through its replacement if one is installed."""
        return self.call(*args, **kwargs)

    def find_parent(self, current: CallContext | None) -> CallContext | None:
        """Find the call around this one where the context does not say it, or refuse.

        Raises
        ------
        WrapError
            While the region is recorded, if the call is not where its declaration says.
        """
        recording = current is not None and current.run is not None
        if self.parent is None and current is None:
            return None
        if current is None:  # another thread than its parent's
            assert self.parent is not None
            calls = tuple(self.parent.running)
            if len(calls) == 1:
                return calls[0]
            if len(calls) > 1 and any(call.run is not None for call in calls):
                raise WrapError(
                    f"node {self.path} was called in a thread that does not say which call of"
                    f" {self.parent_path} it belongs to",
                    hint="start the work with contextvars.copy_context().run",
                )
            return None
        if not recording or current.run.program is not self.program:  # type: ignore[union-attr]
            return None
        above: CallContext | None = current
        while above is not None:
            if above.node == self.path:
                raise WrapError(
                    f"node {self.path} calls itself, in {current.label}",
                    hint="wrap the innermost function, or the call that starts the recursion",
                )
            above = above.parent
        where = "is the root" if self.parent is None else f"belongs into {self.parent_path}"
        hint = "declare the node where it is called"
        if self.parent is not None and self.parent.is_marked:
            hint = f"mark the loop in the code: for ... in {self.parent.name}(...)"
        raise WrapError(f"node {self.path} {where}, and was called in {current.label}", hint=hint)

    def _check_batch(self) -> None:
        batch = self.batch
        if batch is None or self.native is None:
            return
        try:
            signature = inspect.signature(self.native)
        except (TypeError, ValueError):
            return
        if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            return
        named = (*(batch.parameters or ()), *batch.sequences, *((batch.samples,) if batch.samples else ()))
        for parameter in named:
            if parameter not in signature.parameters:
                raise WrapError(
                    f"node {self.path} has no parameter {parameter!r}, which its batch names",
                    hint=f"its parameters are {', '.join(signature.parameters) or 'none'}",
                )


class LoopNode(ExecutionNode):
    """A loop: each call of its entry is one iteration.

    Without an entry the native code marks the iterations: ``for c in chunk(range(12)):``.

    Parameters
    ----------
    count : int or None
        Iterations in one call of the parent; None: not fixed.
    parent : ExecutionNode, Program or None
        As for `ExecutionNode`.
    entry : callable, optional
        The body.
    *accesses, name, component, stateless, batch, resources, role, movable, copy_argument
        As for `ExecutionNode`; a loop without an entry is named ``loop`` by default.
    """

    kind = "loop"

    def __init__(
        self,
        count: int | None,
        parent: ExecutionNode | Program | None = None,
        entry: Entry | None = None,
        *accesses: Access | tuple[Access, ...],
        name: str | None = None,
        component: str | None = None,
        stateless: bool = False,
        batch: BatchSpec | None = None,
        resources: Iterable[str] = (),
        role: Role = "",
        movable: bool = True,
        copy_argument: str | Mapping[str, str] | None = None,
    ) -> None:
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise WrapError(
                f"loop {name or _name_of(entry)} has the count {count!r}",
                hint="give a number from 1 on, or None if it is not fixed",
            )
        if entry is None and accesses:
            raise WrapError(
                f"loop {name or 'loop'} has no entry and declares state",
                hint="declare it on the nodes inside",
            )
        self.count = count
        super().__init__(
            parent,
            entry,  # type: ignore[arg-type]  # None: the code marks the iterations
            *accesses,
            name=name,
            component=component,
            stateless=stateless,
            batch=batch,
            resources=resources,
            role=role,
            movable=movable,
            copy_argument=copy_argument,
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run one iteration; of a loop without an entry: mark the iterations of the iterable given."""
        if self._entry is not None:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs or not (hasattr(args[0], "__iter__") or hasattr(args[0], "__aiter__")):
            raise WrapError(
                f"node {self.path} marks a loop, and needs what is iterated over",
                hint=f"for ... in {self.name}(range(...))",
            )
        return Iterations(self, args[0])


def _no_entry(*_: Any, **__: Any) -> Any:
    raise WrapError("a marked loop has no entry")


def _name_of(entry: Any) -> str:
    if entry is None:
        return "loop"
    while isinstance(entry, functools.partial):
        entry = entry.func
    for attribute in ("__name__", "_method_name"):
        name = getattr(entry, attribute, None)
        if isinstance(name, str):
            return name.strip("<>")
    return type(entry).__name__
