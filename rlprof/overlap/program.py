"""A wrapped program: its nodes and state objects, what was put in their place, and recording it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.components import Components
from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import RecordingError, WrapError
from rlprof.overlap.recorder import Recorder
from rlprof.overlap.recording import Recording
from rlprof.overlap.specs import NodeSpec, StateSpec
from rlprof.overlap.state import State
from rlprof.overlap.trace import RunTrace
from rlprof.taskgraph.threads import Threads
from rlprof.text import counted, with_article

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode

Before = Callable[[CallContext, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[CallContext, Any, "BaseException | None"], None]
Replacement = Callable[..., Any]


class Program:
    """Nodes and state objects that belong together; made first, or by the root node.

    Attributes
    ----------
    nodes : dict of str to ExecutionNode
        By path.
    states : dict of str to State
        By name.
    table : dict of str to callable
        The graph table: what runs in place of a node's native entry, by path.
    threads : Threads
        In which graphs run: the same for all graphs that are installed one after another.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, ExecutionNode] = {}
        self.states: dict[str, State] = {}
        self.table: dict[str, Replacement] = {}
        self.threads = Threads()
        #: Somebody wants to be called around calls.
        self.has_hooks = False
        self._hooks: list[tuple[str | None, Before | None, After | None]] = []
        self._recorder: Recorder | None = None
        #: Of an iteration left by a break or an error; raised by the call around it if that one succeeds.
        self.left_early: WrapError | None = None
        self._recordings: dict[str, Recording] = {}
        self._undo: list[Callable[[], None]] = []
        self._components = Components(self.nodes)

    def __repr__(self) -> str:
        return f"Program({', '.join(self.nodes) or 'no nodes'})"

    # nodes and states --------------------------------------------------------------------------------------

    def add(self, item: ExecutionNode | State) -> None:
        """Take in a node, or a state object that no node declares.

        Raises
        ------
        WrapError
            If there is another of this name, or a node declares a state object that is not known.
        """
        if isinstance(item, State):
            known = self.states.setdefault(item.name, item)
            if known is not item:
                raise WrapError(f"two state objects are named {item.name}", hint="give each its own name")
            return
        if item.path in self.nodes:
            raise WrapError(f"two nodes have the path {item.path}", hint="give one of them another name=...")
        seen: set[tuple[str, object]] = set()
        for access in item.accesses:
            if isinstance(access.state, State):
                self.add(access.state)
            elif access.state not in self.states:
                raise WrapError(
                    f"node {item.path} declares the state {access.state!r}, which is not known",
                    hint=f"known are {', '.join(self.states) or 'none'}; make a State and declare that",
                )
            if access.key is not None:
                self.states[access.name].check(access.key)
            if (access.name, access.key) in seen and access.key_function is None:
                raise WrapError(
                    f"node {item.path} declares state {access.name} twice",
                    hint="an update reads too; declare it once",
                )
            seen.add((access.name, access.key))
            self._check_samples(item, self.states[access.name])
        self.nodes[item.path] = item
        if item.parent is not None:
            item.parent.children.append(item)
            item.parent.switch.is_parent = True

    def _check_samples(self, node: ExecutionNode, state: State) -> None:
        if node.batch is not None and state.by_sample and node.batch.samples is None:
            raise WrapError(
                f"node {node.path} uses state {state.name}, which is by sample, and a part of its batch could"
                " not be told which samples it has",
                hint='give Batch(samples="...") the parameter that takes their indices',
            )

    def component_of(self, node: ExecutionNode) -> str:
        """Component of a node that was not given one: by the object that its entry is bound to."""
        return self._components.of_node(node)

    def node_specs(self) -> dict[str, NodeSpec]:
        """Specs of all nodes by path."""
        return {path: node.spec for path, node in self.nodes.items()}

    def state_specs(self) -> dict[str, StateSpec]:
        """Specs of all state objects by name."""
        of_state = self._components.of_state
        return {
            name: StateSpec(
                name=name,
                component=of_state(state) if state.component is None else state.component,
                partitions=state.partitions,
                by_sample=state.by_sample,
                copies=1 + len(state.copies),
                rollout_weights=state.rollout_weights,
                separate=state.separate,
            )
            for name, state in self.states.items()
        }

    # what happens at calls ---------------------------------------------------------------------------------

    def add_hook(
        self,
        *,
        node: ExecutionNode | str | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> Callable[[], None]:
        """Have functions called at every call of a node, replaced or not.

        Parameters
        ----------
        node : ExecutionNode or str, optional
            Of this node only.
        before : callable, optional
            Gets context, args and kwargs.
        after : callable, optional
            Gets context, result and error (None if it returned); for futures, when they complete.

        Returns
        -------
        callable
            Takes the hook away.
        """
        hook = (None if node is None else self._find(node).path, before, after)
        self._hooks.append(hook)
        self.refresh()

        def remove() -> None:
            if hook in self._hooks:
                self._hooks.remove(hook)
                self.refresh()

        return remove

    def hooks_before(self, node: ExecutionNode) -> Iterable[Before]:
        """Return hooks to call before a call of a node."""
        if not self._hooks:
            return ()
        return [b for path, b, _ in list(self._hooks) if b is not None and path in (None, node.path)]

    def hooks_after(self, node: ExecutionNode) -> Iterable[After]:
        """Return hooks to call after a call of a node: the reverse order."""
        if not self._hooks:
            return ()
        return [a for path, _, a in reversed(self._hooks) if a is not None and path in (None, node.path)]

    def refresh(self) -> None:
        """Let nodes know whether somebody looks, and what runs in their place."""
        self.has_hooks = bool(self._hooks)
        recorded = None if self._recorder is None else self._recorder.region
        for path, node in self.nodes.items():
            node.switch.quiet = not self._hooks and node is not recorded
            if not node.is_marked:
                node.switch.target = self.table.get(path, node.entry)

    def new_run(self, node: ExecutionNode, context: CallContext) -> RunTrace | None:
        """Begin a run if a call of this node is to be recorded."""
        recorder = self._recorder
        return recorder.begin(context) if recorder is not None and recorder.region is node else None

    def ended(self, node: ExecutionNode, context: CallContext, error: BaseException | None) -> None:
        """Check the loops inside a recorded call that has ended, and end its run if it is the region's.

        Raises
        ------
        WrapError
            If a loop of fixed count ran another number of iterations.
        """
        recorder = self._recorder
        if recorder is not None and recorder.region is node:
            recorder.end(context)
        early, self.left_early = self.left_early, None
        if error is not None:
            return
        if early is not None:
            raise early
        for child in node.children:
            if (
                child.is_loop
                and child.count is not None
                and (ran := context.calls_of(child.path)) != child.count
            ):
                times = counted(ran, "iteration")
                raise WrapError(
                    f"loop {child.path} of count {child.count} ran {times} in {context.label}",
                    hint="give the count that it has in every call, or None if it is not fixed",
                )

    # recording ---------------------------------------------------------------------------------------------

    @overload
    def record(
        self,
        region: ExecutionNode | str,
        *,
        runs: int = 2,
        run: Callable[[], object],
        skip: int = 0,
        writes: bool = True,
        ignore: Iterable[object] = (),
    ) -> Recording: ...
    @overload
    def record(
        self,
        region: ExecutionNode | str,
        *,
        runs: int = 2,
        run: None = None,
        skip: int = 0,
        writes: bool = True,
        ignore: Iterable[object] = (),
    ) -> Recorder: ...
    def record(
        self,
        region: ExecutionNode | str,
        *,
        runs: int = 2,
        run: Callable[[], object] | None = None,
        skip: int = 0,
        writes: bool = True,
        ignore: Iterable[object] = (),
    ) -> Recording | Recorder:
        """Record native calls of a region.

        Parameters
        ----------
        region : ExecutionNode or str
            A node; of a loop node each iteration is one run.
        runs : int
            How many calls of it to record: at least 2, or nothing is known to be constant.
        run : callable, optional
            Native training, in which the region is called often enough.
        skip : int
            Calls of the region that go by first, such as warm-up.
        writes : bool
            Find arrays that are written in place by comparing checksums, which costs a pass over every array
            that calls are given or return. torch tensors count their writes themselves. Also find what the
            code between calls changes: attributes, items, variables.
        ignore : iterable of object
            Objects that the code between calls may change, though it is not run when a graph is, such as
            loggers and progress bars; or what the error calls them, such as ``"Trainer.seconds"``.

        Returns
        -------
        Recording or Recorder
            Without `run`: a context manager; after the block its `recording` is there.

        Raises
        ------
        WrapError
            If the program does not do what is declared.
        RecordingError
            If the region was not called often enough, or the runs do not tell who changed an array.
        """
        node = self._find(region)
        if run is not None and not callable(run):
            raise RecordingError(
                f"run is a value of type {type(run).__name__}", hint="give a function that trains"
            )
        recorder = Recorder(self, node, runs=runs, skip=skip, writes=writes, ignore=ignore)
        if run is None:
            return recorder
        with recorder:
            run()
        return recorder.recording

    def start_recording(self, recorder: Recorder) -> None:
        """Record the calls of the recorder's region from now on.

        Raises
        ------
        RecordingError
            If another recording is going on, or a replacement is installed where natives are to be recorded.
        """
        if self._recorder is not None:
            raise RecordingError(f"{self._recorder.region.path} is being recorded already")
        path = recorder.region.path
        for installed in self.table:
            if installed == path or installed.startswith(path + "/"):
                raise RecordingError(
                    f"{installed} has a replacement, and native calls are to be recorded",
                    hint="uninstall it first",
                )
        self._recorder = recorder
        self.refresh()

    def stop_recording(self) -> None:
        """Record nothing any more."""
        self._recorder = None
        self.refresh()

    # graphs ------------------------------------------------------------------------------------------------

    def graph(self, recording: Recording) -> CallGraph:
        """Return the native graph of a recording; see `rlprof.overlap.build.call_graph`."""
        from rlprof.overlap.build import call_graph

        if not isinstance(recording, Recording):
            raise RecordingError(
                f"a value of type {type(recording).__name__} is no recording",
                hint="give what Program.record returns; without run=..., its recording after the block",
            )
        self._recordings[recording.region] = recording
        return call_graph(recording)

    def install(
        self,
        region: ExecutionNode | str | CallGraph,
        replacement: Replacement | None = None,
        *,
        recording: Recording | None = None,
        **options: Any,
    ) -> None:
        """Run something in place of a node's native entry.

        Parameters
        ----------
        region : ExecutionNode, str or CallGraph
            The node; or a graph, for which a replacement is made (`rlprof.overlap.replacement`).
        replacement : callable, optional
            Gets the arguments of the entry, and returns what it would.
        recording : Recording, optional
            What a graph was made of; by default what `graph` was last given for this region.
        **options
            Of `rlprof.overlap.replacement.Replacement`, for a graph.

        Raises
        ------
        WrapError
            If there is no such node, it has no entry, or the recording of a graph is not known.
        """
        if isinstance(region, CallGraph):
            replacement = self._replacement(region, recording, options)
            region = region.region
        node = self._find(region)
        if replacement is not None and not callable(replacement):
            raise WrapError(
                f"{with_article(type(replacement).__name__)} cannot run in place of {node.path}",
                hint="give a function, or a graph alone: program.install(graph)",
            )
        if replacement is None or node.is_marked:
            raise WrapError(
                f"nothing can be installed in place of {node.path}",
                hint="give a replacement, and a node that has an entry",
            )
        self.table[node.path] = replacement
        self.refresh()

    def _replacement(
        self, graph: CallGraph, recording: Recording | None, options: dict[str, Any]
    ) -> Replacement:
        from rlprof.overlap.replacement import Replacement as GraphReplacement

        node = self._find(graph.region)
        recording = recording or self._recordings.get(graph.region)
        if recording is None or recording.region != graph.region:
            raise WrapError(
                f"the recording behind the graph of {graph.region} is not known", hint="give recording=..."
            )
        if node.gives_futures:
            options.setdefault("interface", "future")
        options = {
            "form": recording.form,
            "flags": recording.flags,
            "layouts": recording.layouts,
            "threads": self.threads,
            **options,
        }
        return GraphReplacement(graph, entries(self), recording.constants, native=node.entry, **options)

    def uninstall(self, region: ExecutionNode | str | None = None) -> None:
        """Run the native entry of a node again; of all nodes if none is given."""
        for path in list(self.table) if region is None else [self._find(region).path]:
            removed = self.table.pop(path, None)
            close = getattr(removed, "close", None)
            if callable(close):
                close()
        self.refresh()

    # wrapping ----------------------------------------------------------------------------------------------

    def on_unwrap(self, undo: Callable[[], None]) -> None:
        """Have something called by `unwrap`."""
        self._undo.append(undo)

    def unwrap(self) -> None:
        """Put back every attribute that `wrap` has replaced, the last first; idle threads of graphs end."""
        while self._undo:
            self._undo.pop()()
        self.threads.close()

    def _find(self, node: ExecutionNode | str) -> ExecutionNode:
        from rlprof.overlap.node import ExecutionNode

        if not isinstance(node, (str, ExecutionNode)):
            raise WrapError(
                f"a value of type {type(node).__name__} is no node", hint="give a node, its path, or a graph"
            )
        path = node if isinstance(node, str) else node.path
        found = self.nodes.get(path)
        if found is None or (not isinstance(node, str) and found is not node):
            raise WrapError(
                f"this program has no node {path!r}", hint=f"it has {', '.join(self.nodes) or 'none'}"
            )
        return found


def entries(program: Program) -> Mapping[str, ExecutionNode]:
    """Nodes that can be called, by path: what running a graph needs of a program."""
    return {path: node for path, node in program.nodes.items() if not node.is_marked}
