"""Random programs: plain classes and loops, as source text, with what a user would declare about them.

``python -m tests.overlap.generated SEED`` prints the program of a seed and runs its case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

#: What the variables of a program hold: a batch, shape (batch, WIDTH); a vector, shape (WIDTH,); a list of batches.
Kind = Literal["batch", "vector", "list"]
Mode = Literal["read", "update", "refresh"]


@dataclass(frozen=True)
class StateDecl:
    """A state object: the component itself (``rows``: one for each sample) or a `Box` of it.

    Parameters
    ----------
    name : str
        Of the state, and of the attribute of its component that holds it.
    component : str
        Attribute of the main object.
    kind : {"rows", "shared", "keyed"}
        By sample; one cell; one cell for each partition.
    partitions : int
        Of a keyed one.
    copies : int
        Spare objects.
    weights : bool
        Rollout weights.
    """

    name: str
    component: str
    kind: Literal["rows", "shared", "keyed"]
    partitions: int = 0
    copies: int = 0
    weights: bool = False


@dataclass(frozen=True)
class Use:
    """Declared use of a state; `key` is the parameter that says which partition."""

    state: str
    mode: Mode
    key: str | None = None


@dataclass(frozen=True)
class Site:
    """A node to be.

    Parameters
    ----------
    name : str
        Of the method, or of the attribute of the main object that holds a loop.
    owner : str
        Component, or ``main``.
    parent : str or None
        Name of the parent site.
    kind : {"leaf", "plain", "loop", "body"}
        ``loop``: marks its iterations in the code; ``body``: a method that is the body of a loop.
    count : int or None
        Of iterations.
    uses : tuple of Use
        Declared.
    declared : bool
        False: the program's author says nothing about it.
    stateless : bool
        Says that it has no state.
    batched : tuple of str or None
        Parameters with an axis of samples, if a batch of it may be cut.
    shared_outputs : tuple of int
        Of its output.
    takes_samples : bool
        It has a parameter ``samples``.
    role : {"", "sync", "update"}
        As of `rlprof.overlap.specs.NodeSpec`.
    flavour : str
        ``call``, ``coroutine``, ``future``, ``buffer`` (returns the same array each time), ``argument``
        (changes its first argument), ``condition`` (a parent whose calls depend on data).
    """

    name: str
    owner: str
    parent: str | None
    kind: Literal["leaf", "plain", "loop", "body"] = "leaf"
    count: int | None = None
    uses: tuple[Use, ...] = ()
    declared: bool = True
    stateless: bool = False
    batched: tuple[str, ...] | None = None
    shared_outputs: tuple[int, ...] = ()
    takes_samples: bool = False
    role: Literal["", "sync", "update"] = ""
    flavour: str = "call"


@dataclass(frozen=True)
class Generated:
    """A program and its declarations.

    Parameters
    ----------
    seed : int
        It alone decides.
    batch : int
        Samples.
    source : str
        Classes; ``Main`` has the components as attributes and one call of ``iteration(data)`` is an iteration.
    components : tuple of str
        Attributes of ``Main``; the class is the capitalised name.
    states, sites : tuple
        Parents before children; the first site is the root loop's body.
    region : str
        Site whose calls are recorded.
    """

    seed: int
    batch: int
    source: str
    components: tuple[str, ...]
    states: tuple[StateDecl, ...]
    sites: tuple[Site, ...]
    region: str

    def features(self) -> set[str]:
        """What there is in it, for counting."""
        found = {f"flavour {s.flavour}" for s in self.sites} | {f"kind {s.kind}" for s in self.sites}
        found |= {f"state {s.kind}" for s in self.states} | {
            f"mode {u.mode}" for s in self.sites for u in s.uses
        }
        found |= {f"role {s.role}" for s in self.sites if s.role}
        found |= {"undeclared" for s in self.sites if s.kind == "leaf" and not s.declared}
        return found | ({"inner region"} if self.region != self.sites[0].name else set())


@dataclass
class _Class:
    """Source of a class that is being written."""

    name: str
    start: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


@dataclass
class _Place:
    """Where statements go: the lines of a block, its depth, the variables, the parent node."""

    lines: list[str]
    indent: int
    scope: dict[str, Kind]
    parent: str
    indices: dict[str, int]  # loop variables in sight, and their iterations
    carried: set[str] = field(default_factory=set)  # must not be written over by in-place calls

    def say(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def of(self, kind: Kind) -> list[str]:
        return [name for name, what in self.scope.items() if what == kind]


class _Author:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        self.batch = self.draw.choice((2, 4, 4, 4, 6, 8))
        self.classes: dict[str, _Class] = {"main": _Class("Main")}
        self.states: dict[str, StateDecl] = {}
        self.sites: list[Site] = []
        self.number = 0
        self.calls = 0
        #: unusual ways of calling that this program has
        self.flavours = {
            f for f in ("coroutine", "future", "buffer", "argument") if self.draw.random() < 0.15
        }

    # -- names, components, states

    def fresh(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number}"

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def component(self, name: str, *, copies: int, boxes: int, keyed: bool) -> None:
        """A component with a state by sample and boxes."""
        made = self.classes[name] = _Class(name.capitalize())
        salt = self.draw.randrange(1 << 30)
        made.start.append(f"self.x = start({salt}, {self.batch})")
        self.states[name] = StateDecl(name, name, "rows", copies=copies)
        for i in range(boxes):
            self.box(name, f"{name}_b{i}", "shared")
        if keyed:
            self.box(name, f"{name}_k", "keyed", partitions=4)

    def box(
        self,
        component: str,
        name: str,
        kind: Literal["shared", "keyed"],
        *,
        partitions: int = 0,
        weights: bool = False,
    ) -> None:
        salt = self.draw.randrange(1 << 30)
        shape = f", {partitions}" if kind == "keyed" else ""
        self.states[name] = StateDecl(name, component, kind, partitions, 0, weights)
        self.classes["main"].start.append(f"self.{name} = Box(start({salt}{shape}))")

    # -- nodes

    def leaf(
        self,
        place: _Place,
        component: str,
        *,
        modes: dict[str, Mode],
        inputs: list[tuple[str, Kind | Literal["cut", "cuts"]]],
        batched: bool,
        output: Literal["batch", "pair", "dict", "info", "pass", "vector", "none"] = "batch",
        role: Literal["", "sync", "update"] = "",
        stem: str = "step",
        flavour: str = "call",
    ) -> tuple[str, ...]:
        """A method of a component and a call of it; the variables that take its outputs."""
        name = self.fresh(stem + "_")
        salt = self.draw.randrange(1 << 30)
        parameters = [f"p{i}" for i in range(len(inputs))]
        terms, own = [], []
        for parameter, (_, kind) in zip(parameters, inputs, strict=True):
            terms.append(f"*{parameter}" if kind in ("list", "cuts") else parameter)
        uses, writes, keys = [], [], []
        for state, mode in modes.items():
            declaration = self.states[state]
            key = None
            if declaration.kind == "rows":
                where = "self.x[at]"
            elif declaration.kind == "shared":
                where = f"self.main.{state}.v"
            else:
                key = f"key_{state}"
                keys.append((key, self._key(place, declaration)))
                where = f"self.main.{state}.v[{key}]"
            uses.append(Use(state, mode, key))
            if mode != "refresh":
                own.append(where)
            if mode != "read":
                writes.append((declaration, where))
        takes_samples = batched and any(self.states[s].kind == "rows" for s in modes)
        body = []
        if any(self.states[s].kind == "rows" for s in modes):
            body.append("at = slice(None) if samples is None else samples" if batched else "at = slice(None)")
        body.append(f"h = mix({', '.join([str(salt), *terms, *own])})")
        body.append(f"probe({name!r}, h)")
        if role == "update":
            body.append(f"log.update({name!r}, mix({', '.join(['1', *terms])}))")
        weights = [s for s in modes if self.states[s].weights and modes[s] == "read"]
        for state in weights:
            body.append(f"log.rollout({name!r}, mix({', '.join(['1', *terms])}), self.main.{state})")
        if not batched and any(kind != "vector" for _, kind in inputs):
            body.append("h = mix(3, h, h.sum(axis=0))")
        for i, (declaration, where) in enumerate(writes):
            value = f"mix({i + 4}, h)"
            if declaration.kind != "rows":
                value = f"mix({i + 4}, h.reshape(-1, h.shape[-1]).sum(axis=0))"
            if declaration.kind == "shared" and self.chance(0.5):
                where += "[...]"
            body.append(f"{where} = {value}")
        if flavour == "argument":
            body += ["p0 += mix(97, h)", f"return {'None' if output == 'none' else 'p0'}"]
        elif flavour == "buffer":
            made = self.classes[component]
            made.start.append(f"self.buffer_{name} = np.zeros(({self.batch}, 3), dtype=np.uint64)")
            body += [f"self.buffer_{name}[...] = mix(98, h)", f"return self.buffer_{name}"]
        else:
            first = "mix(98, h)"
            info = f"mix(96, {', '.join(w for w in own if 'x[at]' not in w) or '_ROW'})"
            body.append(
                {
                    "batch": f"return {first}",
                    "pair": f"return {first}, mix(97, h)",
                    "dict": f"return {{'a': {first}, 'b': mix(97, h)}}",
                    "info": f"return {first}, {info}",
                    "pass": f"return p0, {first}",
                    "vector": "return mix(98, h).reshape(-1, 3).sum(axis=0)",
                    "none": "return None",
                }[output]
            )
        signature = ["self", *parameters, *(key for key, _ in keys)]
        if takes_samples:
            signature.append("samples=None")
        opening = "async def" if flavour == "coroutine" else "def"
        made = self.classes[component]
        if flavour == "future":
            made.methods += self._method(
                "def", name, signature, [f"return pool.submit(self.{name}_now, {', '.join(signature[1:])})"]
            )
            made.methods += self._method("def", f"{name}_now", signature, body)
        else:
            made.methods += self._method(opening, name, signature, body)
        # who says nothing means all states of the component, and no others
        silent = self.chance(0.06) and not role and all(self.states[s].component == component for s in modes)
        self.sites.append(
            Site(
                name,
                component,
                place.parent,
                uses=tuple(uses),
                declared=not silent,
                stateless=not uses and not silent,
                batched=tuple(
                    p for p, (_, k) in zip(parameters, inputs, strict=True) if k in ("batch", "list")
                )
                if batched
                else None,
                shared_outputs=(1,) if output == "info" else (),
                takes_samples=takes_samples,
                role=role,
                flavour=flavour,
            )
        )
        given = [self._argument(place, variable, kind, batched) for variable, kind in inputs]
        if flavour == "argument":
            given[0] = inputs[0][0] + self.draw.choice(("", "", "[:, ::-1]"))
        if output == "pass":
            given[0] = inputs[0][0]  # not narrowed: it lives on as a batch
        given += [f"{key}={value}" if self.chance(0.5) else value for key, value in keys]
        if len(keys) > 1:
            given = given[: len(inputs)] + [value for _, value in keys]
        call = f"self.{component}.{name}({', '.join(given)})"
        if flavour == "coroutine":
            call = f"asyncio.run({call})"
        elif flavour == "future":
            call = f"{call}.result()"
        return self._bind(place, call, output)

    def _method(self, opening: str, name: str, signature: list[str], body: list[str]) -> list[str]:
        return [f"    {opening} {name}({', '.join(signature)}):", *(f"        {line}" for line in body), ""]

    def _key(self, place: _Place, declaration: StateDecl) -> str:
        small = [name for name, count in place.indices.items() if count <= declaration.partitions]
        return self.draw.choice(small) if small and self.chance(0.8) else str(self.draw.randrange(4))

    def _argument(self, place: _Place, variable: str, kind: str, batched: bool) -> str:
        """The variable, or some view of it that the code between calls makes."""
        if kind == "batch" and self.chance(0.2):
            return variable + self.draw.choice(("[:, ::-1]", "[:, :1]", "[:, 1:2]"))
        if kind == "vector" and place.scope.get(variable) == "batch":
            return f"{variable}[{self.draw.randrange(self.batch)}]"
        return variable

    def _bind(self, place: _Place, call: str, output: str) -> tuple[str, ...]:
        if output == "none":
            place.say(call)
            return ()
        if output == "vector":
            name = self.fresh("v")
            place.say(f"{name} = {call}")
            place.scope[name] = "vector"
            return (name,)
        if output == "batch":
            name = self.fresh("b")
            place.say(f"{name} = {call}")
            place.scope[name] = "batch"
            return (name,)
        first = self.fresh("b")
        second = self.fresh("v" if output == "info" else "b")
        if output == "dict":
            place.say(f"{first} = {call}")
            place.say(f"{first}, {second} = {first}['a'], {first}['b']")
        else:
            place.say(f"{first}, {second} = {call}")
        place.scope[first] = "batch"
        place.scope[second] = "vector" if output == "info" else "batch"
        return first, second

    # -- statements

    def some_inputs(self, place: _Place, least: int = 1) -> list[tuple[str, Kind]]:
        batches, vectors = place.of("batch"), place.of("vector")
        picked: list[tuple[str, Kind]] = [
            (self.draw.choice(batches[-4:]), "batch") for _ in range(self.draw.randint(least, 2))
        ]
        if vectors and self.chance(0.25):
            picked.append((self.draw.choice(vectors), "vector"))
        elif self.chance(0.05):
            picked.append((self.draw.choice(batches), "vector"))
        return picked

    def any_leaf(self, place: _Place, *, splittable: float = 0.75) -> None:
        """A call of a new method of some component, with some use of state."""
        component = self.draw.choice([c for c in self.classes if c != "main"])
        batched = self.chance(splittable)
        modes: dict[str, Mode] = {}
        for name, state in self.states.items():
            if state.component != component and not (state.kind == "shared" and self.chance(0.1)):
                continue
            if state.weights or not self.chance(0.4):
                continue
            if state.kind == "rows":
                modes[name] = self.draw.choice(("read", "update", "refresh"))
            elif batched and not self.chance(0.1):
                modes[name] = "read"
            else:
                modes[name] = self.draw.choice(("read", "update", "refresh"))
        inputs: list[tuple[str, Kind]] = self.some_inputs(place)
        lists = place.of("list")
        if lists and self.chance(0.4):
            inputs.append((self.draw.choice(lists), "list"))
        flavour = self.draw.choice(("call", *sorted(self.flavours)))
        output = self.draw.choice(("batch", "batch", "pair", "dict", "info", "pass", "none"))
        if not batched and self.chance(0.4):
            output = "vector"
        if output == "info" and (
            not any(m != "refresh" and self.states[s].kind != "rows" for s, m in modes.items())
        ):
            output = "batch"
        if flavour in ("buffer", "argument"):
            batched, output = False, "batch" if flavour == "buffer" or self.chance(0.5) else "none"
            writable = [v for v in place.of("batch") if v not in place.carried]
            if flavour == "argument" and not writable:
                flavour = "call"
            elif flavour == "argument":
                inputs = [(writable[-1], "batch"), *inputs]
        self.leaf(
            place,
            component,
            modes=modes,
            inputs=list(inputs),
            batched=batched,
            output=output,
            flavour=flavour,
        )

    def glue(self, place: _Place) -> None:
        """A line that only routes."""
        name = self.fresh("b")
        place.say(f"{name} = {self.draw.choice(place.of('batch'))}[:, ::-1]")
        place.scope[name] = "batch"
        place.carried.add(name)

    def loop(self, place: _Place, count: int, write: object, stem: str = "loop") -> None:
        """A loop, marked in the code, by a method that is its body, or not at all; `write` writes the body."""
        assert callable(write)
        form = self.draw.choice(("marked", "marked", "body", "bare"))
        index, name = self.fresh("i"), self.fresh(stem + "_")
        carried = [v for v in place.of("batch")[-3:] if self.chance(0.4)]
        collected = self.fresh("l")
        place.say(f"{collected} = []")
        if form == "body":
            self.sites.append(Site(name, "main", place.parent, "body", count))
            outer = place
            parameters = [v for v in outer.scope if outer.scope[v] != "list"]
            lines: list[str] = []
            inner = _Place(
                lines,
                2,
                {v: outer.scope[v] for v in parameters},
                name,
                {**outer.indices, index: count},
                set(parameters),
            )
            write(inner)
            fresh = [v for v in inner.of("batch") if v not in parameters] or inner.of("batch")
            returned = [self.draw.choice(fresh[-3:]) for _ in carried]
            kept = fresh[-1]
            inner.say(f"return ({', '.join([*returned, kept])},)")
            indices = list(outer.indices)
            self.classes["main"].methods += [
                f"    def {name}(self, {', '.join([index, *indices, *parameters])}):",
                *lines,
                "",
            ]
            place.say(f"for {index} in range({count}):")
            place.say(f"    *new, kept = self.{name}({', '.join([index, *indices, *parameters])})")
            if carried:
                place.say(f"    {', '.join(carried)}, = new")
            place.say(f"    {collected}.append(kept)")
        else:
            parent = place.parent
            header = f"for {index} in range({count}):"
            if form == "marked":
                parent = name
                self.sites.append(Site(name, "main", place.parent, "loop", count))
                self.classes["main"].start.append(f"self.{name} = plain_loop")
                header = f"for {index} in self.{name}(range({count})):"
            place.say(header)
            inner = _Place(
                place.lines,
                place.indent + 1,
                dict(place.scope),
                parent,
                {**place.indices, index: count},
                set(place.carried) | set(carried),
            )
            write(inner)
            fresh = [v for v in inner.of("batch") if v not in place.scope] or inner.of("batch")
            for variable in carried:
                inner.say(f"{variable} = {self.draw.choice(fresh[-3:])}")
            inner.say(f"{collected}.append({fresh[-1]})")
        place.scope[collected] = "list"
        place.carried.update(carried)

    def part(self, place: _Place, write: object) -> None:
        """A parent node: a method of the main object, called once or twice."""
        assert callable(write)
        name = self.fresh("part_")
        self.sites.append(Site(name, "main", place.parent, "plain"))
        parameters = [v for v in place.scope if self.chance(0.5) or place.scope[v] == "batch"]
        lines: list[str] = []
        inner = _Place(
            lines, 2, {v: place.scope[v] for v in parameters}, name, dict(place.indices), set(parameters)
        )
        write(inner)
        fresh = [v for v in inner.of("batch") if v not in parameters] or inner.of("batch")
        one, two = self.draw.choice(fresh), fresh[-1]
        inner.say(f"return {one}, {{'x': {two}, 'y': [{one}, {self.draw.choice(parameters)}]}}")
        indices = list(place.indices)
        self.classes["main"].methods += [
            f"    def {name}(self, {', '.join([*indices, *parameters])}):",
            *lines,
            "",
        ]
        for _ in range(self.draw.choice((1, 1, 1, 2))):
            b, other = self.fresh("b"), self.fresh("b")
            place.say(f"{b}, {other} = self.{name}({', '.join([*indices, *parameters])})")
            place.say(f"{other} = {other}['x']")
            place.scope[b] = place.scope[other] = "batch"
            place.carried |= {b, other}

    def condition(self, place: _Place) -> None:
        """A parent node with its own arithmetic, and a number of calls that depends on data."""
        name = self.fresh("while_")
        variable = self.draw.choice(place.of("batch")[-3:])
        self.sites.append(Site(name, "main", place.parent, "plain", flavour="condition"))
        lines: list[str] = []
        inner = _Place(lines, 3, {"b": "batch", "turns": "vector"}, name, dict(place.indices), {"b"})
        looped = self.chance(0.6)
        self.any_leaf(inner)
        last = inner.of("batch")[-1]
        inner.say(f"b = {last}")
        indices = list(place.indices)
        head = (
            f"for _ in range(1 + int(b[0, 0] >> np.uint64(9)) % 3):"
            if looped
            else "if b[0, 0] & np.uint64(64):"
        )
        self.classes["main"].methods += [
            f"    def {name}(self, {', '.join([*indices, 'b'])}):",
            "        turns = b[0].copy()",
            f"        {head}",
            *lines,
            "        return b + np.uint64(1)",
            "",
        ]
        made = self.fresh("b")
        place.say(f"{made} = self.{name}({', '.join([*indices, variable])})")
        place.scope[made] = "batch"

    def extras(self, place: _Place, most: int, *, deep: bool = True) -> None:
        for _ in range(self.draw.randint(0, most)):
            kind = self.draw.random()
            if kind < 0.15:
                self.glue(place)
            elif kind < 0.2 and deep:
                self.part(place, lambda inner: self.extras_at_least_one(inner))
            elif kind < 0.24 and deep:
                self.condition(place)
            else:
                self.any_leaf(place)

    def extras_at_least_one(self, place: _Place) -> None:
        self.any_leaf(place)
        self.extras(place, 1, deep=False)

    # -- whole programs

    def training_program(self, place: _Place) -> None:
        """Synchronise, roll out in epochs of chunks, train in minibatches; parts at random."""
        self.component("policy", copies=0, boxes=self.draw.randint(0, 1), keyed=False)
        self.component(
            "simulator",
            copies=self.draw.choice((0, 1, 1, 2)),
            boxes=self.draw.randint(0, 1),
            keyed=self.chance(0.4),
        )
        if self.chance(0.4):
            self.component("scorer", copies=0, boxes=self.draw.randint(0, 1), keyed=self.chance(0.5))
        self.component("learner", copies=0, boxes=0, keyed=False)
        self.box("policy", "weights", "shared", weights=True)
        self.box("learner", "theta", "shared")
        self.box("learner", "moments", "shared")
        if self.chance(0.7):
            self.leaf(
                place,
                "learner",
                modes={"theta": "read", "weights": "refresh"},
                inputs=[],
                batched=False,
                output="none",
                role="sync",
                stem="sync",
            )
        if self.chance(0.5):
            self.part(place, self.rollout)
        else:
            self.rollout(place)
        self.extras(place, 1)
        if self.chance(0.7):
            self.training(place)
        self.extras(place, 1)

    def rollout(self, place: _Place) -> None:
        if self.chance(0.6):
            self.loop(place, self.draw.choice((2, 2, 3)), self.epoch, "epoch_")
        else:
            self.epoch(place)

    def epoch(self, place: _Place) -> None:
        reset = self.draw.choice(("start", "start", "start", "end", "none"))
        if reset == "start":
            self.reset(place)
        self.loop(place, self.draw.choice((2, 2, 3, 4)), self.chunk, "chunk_")
        lists = place.of("list")
        if lists and self.chance(0.4):
            self.leaf(
                place,
                "learner",
                modes={},
                inputs=[(lists[-1], "list")],
                batched=False,
                stem="advantage_",
            )
        if reset == "end":
            self.reset(place)
        if self.chance(0.15):
            self.training(place)
        # the loop collects the last batch
        if not place.lines or self.chance(0.5):
            self.any_leaf(place)

    def reset(self, place: _Place) -> None:
        inputs: list[tuple[str, Kind]] = [(self.draw.choice(place.of("batch")), "batch")]
        self.leaf(
            place,
            "simulator",
            modes={"simulator": "refresh"},
            inputs=list(inputs),
            batched=True,
            stem="reset_",
        )

    def chunk(self, place: _Place) -> None:
        self.extras(place, 1)
        observation = self.draw.choice(place.of("batch")[-3:])
        modes: dict[str, Mode] = {"weights": "read"}
        if self.chance(0.15):
            modes["policy"] = "update"
        (action,) = self.leaf(
            place,
            "policy",
            modes=modes,
            inputs=[(observation, "batch")],
            batched=self.chance(0.93),
            stem="infer_",
        )
        self.extras(place, 1)
        modes = {"simulator": "update"}
        if "simulator_k" in self.states and self.chance(0.6):
            modes["simulator_k"] = "read" if self.chance(0.5) else "refresh"
        batched = modes.get("simulator_k") != "refresh" and self.chance(0.95)
        self.leaf(
            place,
            "simulator",
            modes=modes,
            inputs=[(action, "batch")],
            batched=batched,
            output=self.draw.choice(("batch", "pair", "dict")),
            stem="step_",
        )
        self.extras(place, 1)

    def training(self, place: _Place) -> None:
        """Minibatches: views of what was collected."""
        size = max(1, self.batch // 2)
        lists = place.of("list")
        count = self.batch // size

        def minibatch(inner: _Place) -> None:
            index = list(inner.indices)[-1]
            cut = f"[{index} * {size}:({index} + 1) * {size}]"
            seen = inner.of("list")
            if seen and self.chance(0.5):
                given: tuple[str, Literal["cut", "cuts"]] = (
                    f"[t{cut} for t in {self.draw.choice(seen)}]",
                    "cuts",
                )
            else:
                given = (self.draw.choice(inner.of("batch")) + cut, "cut")
            self.leaf(
                inner,
                "learner",
                modes={"theta": "update", "moments": "update"},
                inputs=[given],
                batched=False,
                output="vector",
                role="update",
                stem="update_",
            )

        del lists
        if self.chance(0.7):
            self.loop(place, count, minibatch, "minibatch_")
        else:
            for _ in range(self.draw.randint(1, 2)):
                self.loop(place, 1, minibatch, "minibatch_")

    def random_program(self, place: _Place) -> None:
        """Components and blocks without a plan."""
        for name in ("alpha", "beta", "gamma", "delta")[: self.draw.randint(2, 4)]:
            self.component(
                name,
                copies=self.draw.choice((0, 0, 1)),
                boxes=self.draw.randint(0, 2),
                keyed=self.chance(0.4),
            )
        self.block(place, 0)
        while self.calls_so_far() < 3:
            self.any_leaf(place)

    def calls_so_far(self) -> int:
        return sum(site.kind == "leaf" for site in self.sites)

    def block(self, place: _Place, depth: int) -> None:
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.random()
            if kind < 0.35 and depth < 3 and self.calls_so_far() < 8:
                self.loop(place, self.draw.choice((1, 2, 2, 3)), lambda inner: self.block(inner, depth + 1))
            elif kind < 0.42 and depth < 2:
                self.part(place, lambda inner: self.block(inner, depth + 1))
            elif kind < 0.46:
                self.condition(place)
            elif kind < 0.53:
                self.glue(place)
            else:
                self.any_leaf(place)

    def write(self) -> Generated:
        self.sites.append(Site("iteration", "main", None, "body"))
        lines: list[str] = []
        place = _Place(lines, 2, {"data": "batch"}, "iteration", {}, {"data"})
        region = "iteration"
        if self.chance(0.7):
            self.training_program(place)
        else:
            self.random_program(place)
        parts = [
            s.name
            for s in self.sites
            if s.kind == "plain" and s.parent == "iteration" and s.flavour == "call"
        ]
        if parts and self.chance(0.3):
            region = self.draw.choice(parts)
        given = list(place.scope)
        chosen = self.draw.sample(given, min(len(given), self.draw.randint(1, 4)))
        if self.chance(0.3):
            place.say(f"return {{'first': {place.of('batch')[-1]}, 'rest': [{', '.join(chosen)}]}}")
        else:
            place.say(f"return ({', '.join([place.of('batch')[-1], *chosen])},)")
        main = self.classes["main"]
        main.methods += ["    def iteration(self, data):", *lines, ""]
        return Generated(
            self.seed, self.batch, self._source(), tuple(c for c in self.classes if c != "main"),
            tuple(self.states.values()), tuple(self.sites), region,
        )  # fmt: skip

    def _source(self) -> str:
        text = []
        for name, made in self.classes.items():
            if name == "main":
                continue
            text += [f"class {made.name}:", "    def __init__(self, main):", "        self.main = main"]
            text += [*(f"        {line}" for line in made.start), "", *made.methods]
        main = self.classes["main"]
        text += ["class Main:", "    def __init__(self):", *(f"        {line}" for line in main.start)]
        text += [f"        self.{n} = {c.name}(self)" for n, c in self.classes.items() if n != "main"]
        text += ["", *main.methods]
        return "\n".join(text)


def generate(seed: int) -> Generated:
    """Return the program of a seed."""
    return _Author(seed).write()
