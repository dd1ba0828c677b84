"""Writing a generated program's text: classes, methods that compute with inputs and state, calls of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from tests.overlap.declarations import Kind, Mode, Site, StateDecl, Use


@dataclass
class ClassText:
    """Source of a class that is being written."""

    name: str
    start: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


@dataclass
class Place:
    """Where statements go: the lines of a block, its depth, the variables, the parent node."""

    lines: list[str]
    indent: int
    scope: dict[str, Kind]
    parent: str
    indices: dict[str, int]  # loop variables in sight, and their iterations
    carried: set[str] = field(default_factory=set)  # must not be written over by in-place calls
    unmarked: bool = False  # inside a loop that is not marked

    def say(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def of(self, kind: Kind) -> list[str]:
        return [name for name, what in self.scope.items() if what == kind]


class Writer:
    """A program that is being written: its components, and calls of their methods."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        self.batch = self.draw.choice((2, 4, 4, 4, 6, 8))
        self.classes: dict[str, ClassText] = {"main": ClassText("Main")}
        self.states: dict[str, StateDecl] = {}
        self.sites: list[Site] = []
        self.number = 0
        self.calls = 0
        #: its rollouts are independent: they begin with a reset, and little else is written in them
        self.independent = self.chance(0.4)
        self.draws = self.chance(0.25)  # its methods draw random numbers
        #: unusual ways of calling that this program has
        self.flavours = {
            f for f in ("coroutine", "future", "buffer", "argument") if self.draw.random() < 0.15
        }
        #: the code around the calls is made of coroutines, too
        self.awaited = "await " if self.chance(0.06) else ""
        self.opening = "async def" if self.awaited else "def"
        if self.awaited:
            self.flavours.add("coroutine")

    # -- names, components, states

    def fresh(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number}"

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def component(self, name: str, *, copies: int, boxes: int, keyed: bool) -> None:
        """A component with a state by sample and boxes."""
        made = self.classes[name] = ClassText(name.capitalize())
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
        self.classes["main"].start.append(f"boxes.{name} = Box(start({salt}{shape}))")

    # -- nodes

    def leaf(
        self,
        place: Place,
        component: str,
        *,
        modes: dict[str, Mode],
        inputs: list[tuple[str, Kind | Literal["cut", "cuts", "rows"]]],
        batched: bool,
        output: Literal["batch", "pair", "named", "dict", "info", "pass", "vector", "none"] = "batch",
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
            spelled = {"list": f"*{parameter}", "cuts": f"*{parameter}", "rows": f"np.stack({parameter})"}
            terms.append(spelled.get(kind, parameter))
        uses, writes, keys = [], [], []
        for state, mode in modes.items():
            declaration = self.states[state]
            key = None
            if declaration.kind == "rows":
                where = "self.x[at]"
            elif declaration.kind == "shared":
                where = f"boxes.{state}.v"
            else:
                key = f"key_{state}"
                keys.append((key, self._key(place, declaration)))
                where = f"boxes.{state}.v[{key}]"
            uses.append(Use(state, mode, key, len(inputs) + len(keys) - 1 if key else 0))
            if mode != "refresh":
                own.append(where)
            if mode != "read":
                writes.append((declaration, where))
        takes_samples = batched and any(self.states[s].kind == "rows" for s in modes)
        body = []
        if any(self.states[s].kind == "rows" for s in modes):
            body.append("at = slice(None) if samples is None else samples" if batched else "at = slice(None)")
        body.append(f"h = mix({', '.join([str(salt), *terms, *own])})")
        rowed = any(kind != "vector" for _, kind in inputs)
        if self.draws and rowed and flavour in ("call", "coroutine") and self.chance(0.4):
            told = ", samples" if takes_samples and self.chance(0.5) else ""
            body.append(f"h = mix(2, h, noise(len(h){told}))")
        body.append(f"probe({name!r}, h)")
        if role == "update":
            body.append(f"log.update({name!r}, mix({', '.join(['1', *terms])}))")
        weights = [s for s in modes if self.states[s].weights and modes[s] == "read"]
        for state in weights:
            body.append(f"log.rollout({name!r}, mix({', '.join(['1', *terms])}), boxes.{state})")
        unit = 2 if batched and rowed and self.batch % 2 == 0 and self.chance(0.06) else 1
        if unit == 2:  # samples of a pair see each other
            body.append("h = mix(5, h, h.reshape(-1, 2, 3)[:, ::-1].reshape(-1, 3))")
        if not batched and rowed:
            body.append("h = mix(3, h, h.sum(axis=0))")
        for i, (declaration, where) in enumerate(writes):
            value = f"mix({i + 4}, h)"
            if declaration.kind != "rows":
                value = f"mix({i + 4}, h.reshape(-1, h.shape[-1]).sum(axis=0))"
            inside = "[...]" if declaration.kind == "shared" and self.chance(0.5) else ""
            body.append(f"{where}{inside} = {value}")
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
                    "named": f"return Pair({first}, mix(97, h))",
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
            passed = ", ".join(parameter.partition("=")[0] for parameter in signature[1:])
            submit = [f"return pool.submit(self.{name}_now, {passed})"]
            made.methods += self._method("def", name, signature, submit)
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
                sequences=tuple(p for p, (_, k) in zip(parameters, inputs, strict=True) if k == "rows"),
                unit=unit,
                shared_outputs=(1,) if output == "info" else (),
                takes_samples=takes_samples,
                role=role,
                flavour=flavour,
            )
        )
        given = [self._argument(place, variable, kind, batched) for variable, kind in inputs]
        if flavour == "argument":
            given[0] = inputs[0][0] + self.draw.choice(("", "", "[:, ::-1]"))
        if len(given) > 1 and not keys and self.chance(0.2):
            given[-1] = f"{parameters[-1]}={given[-1]}"
        if output == "pass":
            given[0] = inputs[0][0]  # not narrowed: it lives on as a batch
        given += [f"{key}={value}" if self.chance(0.5) else value for key, value in keys]
        if len(keys) > 1:
            given = given[: len(inputs)] + [value for _, value in keys]
        call = f"self.{component}.{name}({', '.join(given)})"
        if flavour == "coroutine":
            call = f"await {call}" if self.awaited else f"asyncio.run({call})"
        elif flavour == "future":
            call = f"{call}.result()"
        return self._bind(place, call, output)

    def _method(self, opening: str, name: str, signature: list[str], body: list[str]) -> list[str]:
        return [f"    {opening} {name}({', '.join(signature)}):", *(f"        {line}" for line in body), ""]

    def _key(self, place: Place, declaration: StateDecl) -> str:
        small = [name for name, count in place.indices.items() if count <= declaration.partitions]
        return self.draw.choice(small) if small and self.chance(0.8) else str(self.draw.randrange(4))

    def _argument(self, place: Place, variable: str, kind: str, batched: bool) -> str:
        """The variable, or some view of it that the code between calls makes."""
        if kind == "batch" and self.chance(0.2):
            return variable + self.draw.choice(("[:, ::-1]", "[:, :1]", "[:, 1:2]"))
        if kind == "rows":
            return f"list({variable})"
        if kind == "vector" and place.scope.get(variable) == "batch":
            return f"{variable}[{self.draw.randrange(self.batch)}]"
        return variable

    def _bind(self, place: Place, call: str, output: str) -> tuple[str, ...]:
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
