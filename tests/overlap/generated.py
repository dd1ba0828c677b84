"""Random programs: plain classes and loops, as source text, with what a user would declare about them.

``python -m tests.overlap.generated SEED`` prints the program of a seed and runs its case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

from tests.overlap.declarations import Generated, Kind, Mode, Site
from tests.overlap.writing import Place, Writer

#: Writes statements at a place.
Write = Callable[[Place], None]


class Author(Writer):
    """Chooses what is written."""

    # -- statements

    def some_inputs(self, place: Place, least: int = 1) -> list[tuple[str, Kind]]:
        batches, vectors = place.of("batch"), place.of("vector")
        picked: list[tuple[str, Kind]] = [
            (self.draw.choice(batches[-4:]), "batch") for _ in range(self.draw.randint(least, 2))
        ]
        if vectors and self.chance(0.25):
            picked.append((self.draw.choice(vectors), "vector"))
        elif self.chance(0.05):
            picked.append((self.draw.choice(batches), "vector"))
        return picked

    def any_leaf(self, place: Place, *, splittable: float = 0.75) -> None:
        """A call of a new method of some component, with some use of state."""
        component = self.draw.choice([c for c in self.classes if c != "main"])
        batched = self.chance(splittable)
        modes: dict[str, Mode] = {}
        for name, state in self.states.items():
            if state.component != component and not (state.kind == "shared" and self.chance(0.1)):
                continue
            if state.weights or not self.chance(0.4):
                continue
            if self.independent and not self.chance(0.1):
                modes[name] = "read"
            elif state.kind == "rows":
                modes[name] = self.draw.choice(("read", "update", "refresh"))
            elif batched and not self.chance(0.1):
                modes[name] = "read"
            else:
                modes[name] = self.draw.choice(("read", "update", "refresh"))
        inputs: list[Any] = [*self.some_inputs(place)]
        lists = place.of("list")
        if lists and self.chance(0.4):
            inputs.append((self.draw.choice(lists), "list"))
        elif self.chance(0.06):
            inputs.append((self.draw.choice(place.of("batch")), "rows"))
        flavour = self.draw.choice(("call", *sorted(self.flavours)))
        output = self.draw.choice(("batch", "batch", "pair", "named", "dict", "info", "pass", "none"))
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

    def glue(self, place: Place) -> None:
        """A line that only routes."""
        name = self.fresh("b")
        place.say(f"{name} = {self.draw.choice(place.of('batch'))}[:, ::-1]")
        place.scope[name] = "batch"
        place.carried.add(name)

    def loop(self, place: Place, count: int, write: Write, stem: str = "loop") -> None:
        """A loop: marked in the code, with a method as its body, or neither; `write` writes the body."""
        # a loop inside one that nobody marks would have another count
        form = "bare" if place.unmarked else self.draw.choice(("marked", "marked", "body", "bare"))
        index, name = self.fresh("i"), self.fresh(stem + "_")
        alone = self.independent and stem == "epoch_"
        if alone:
            form = self.draw.choice(("marked", "body"))
        carried = [v for v in place.of("batch")[-3:] if self.chance(0.4) and not alone]
        collected = self.fresh("l")
        place.say(f"{collected} = []")
        if form == "body":
            self.sites.append(Site(name, "main", place.parent, "body", count))
            outer = place
            parameters = [v for v in outer.scope if outer.scope[v] != "list"]
            lines: list[str] = []
            inner = Place(
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
                f"    {self.opening} {name}(self, {', '.join([index, *indices, *parameters])}):",
                *lines,
                "",
            ]
            place.say(f"for {index} in range({count}):")
            place.say(
                f"    *new, kept = {self.awaited}self.{name}({', '.join([index, *indices, *parameters])})"
            )
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
            inner = Place(
                place.lines,
                place.indent + 1,
                dict(place.scope),
                parent,
                {**place.indices, index: count},
                set(place.carried) | set(carried),
                place.unmarked or form == "bare",
            )
            write(inner)
            fresh = [v for v in inner.of("batch") if v not in place.scope] or inner.of("batch")
            for variable in carried:
                inner.say(f"{variable} = {self.draw.choice(fresh[-3:])}")
            inner.say(f"{collected}.append({fresh[-1]})")
        place.scope[collected] = "list"
        place.carried.update(carried)

    def part(self, place: Place, write: Write) -> None:
        """A parent node: a method of the main object, called once or twice."""
        name = self.fresh("part_")
        self.sites.append(Site(name, "main", place.parent, "plain"))
        parameters = [v for v in place.scope if self.chance(0.5) or place.scope[v] == "batch"]
        lines: list[str] = []
        inner = Place(
            lines, 2, {v: place.scope[v] for v in parameters}, name, dict(place.indices), set(parameters)
        )
        write(inner)
        fresh = [v for v in inner.of("batch") if v not in parameters] or inner.of("batch")
        one, two = self.draw.choice(fresh), fresh[-1]
        inner.say(f"return {one}, {{'x': {two}, 'y': [{one}, {self.draw.choice(parameters)}]}}")
        indices = list(place.indices)
        self.classes["main"].methods += [
            f"    {self.opening} {name}(self, {', '.join([*indices, *parameters])}):",
            *lines,
            "",
        ]
        for _ in range(self.draw.choice((1, 1, 1, 2))):
            b, other = self.fresh("b"), self.fresh("b")
            place.say(f"{b}, {other} = {self.awaited}self.{name}({', '.join([*indices, *parameters])})")
            place.say(f"{other} = {other}['x']")
            place.scope[b] = place.scope[other] = "batch"
            place.carried |= {b, other}

    def condition(self, place: Place) -> None:
        """A parent node with its own arithmetic, and a number of calls that depends on data."""
        name = self.fresh("while_")
        variable = self.draw.choice(place.of("batch")[-3:])
        self.sites.append(Site(name, "main", place.parent, "plain", flavour="condition"))
        lines: list[str] = []
        inner = Place(lines, 3, {"b": "batch", "turns": "vector"}, name, dict(place.indices), {"b"})
        looped = self.chance(0.6)
        self.any_leaf(inner)
        last = inner.of("batch")[-1]
        inner.say(f"b = {last}")
        indices = list(place.indices)
        head = (
            "for _ in range(1 + int(b[0, 0] >> np.uint64(9)) % 3):"
            if looped
            else "if b[0, 0] & np.uint64(64):"
        )
        self.classes["main"].methods += [
            f"    {self.opening} {name}(self, {', '.join([*indices, 'b'])}):",
            "        turns = b[0].copy()",
            f"        {head}",
            *lines,
            "        return b + np.uint64(1)",
            "",
        ]
        made = self.fresh("b")
        place.say(f"{made} = {self.awaited}self.{name}({', '.join([*indices, variable])})")
        place.scope[made] = "batch"
        # somebody needs what its own code computes: without that, one that happened to take the same way in
        # both recorded runs could not be told from one that always does
        component = self.draw.choice([c for c in self.classes if c != "main"])
        self.leaf(place, component, modes={}, inputs=[(made, "batch")], batched=self.chance(0.7))

    def extras(self, place: Place, most: int, *, deep: bool = True) -> None:
        for _ in range(self.draw.randint(0, most)):
            kind = self.draw.random()
            if kind < 0.15:
                self.glue(place)
            elif kind < 0.2 and deep:
                self.part(place, self.extras_at_least_one)
            elif kind < 0.24 and deep:
                self.condition(place)
            else:
                self.any_leaf(place)

    def extras_at_least_one(self, place: Place) -> None:
        self.any_leaf(place)
        self.extras(place, 1, deep=False)

    # -- whole programs

    def training_program(self, place: Place) -> None:
        """Synchronise, roll out in epochs of chunks, train in minibatches; parts at random."""
        self.component("policy", copies=0, boxes=self.draw.randint(0, 1), keyed=False)
        self.component(
            "simulator",
            copies=self.draw.choice((1, 1, 2) if self.independent else (0, 1, 1, 2)),
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

    def rollout(self, place: Place) -> None:
        if self.chance(0.9 if self.independent else 0.6):
            self.loop(place, self.draw.choice((2, 2, 2, 3)), self.epoch, "epoch_")
        else:
            self.epoch(place)

    def epoch(self, place: Place) -> None:
        reset = "start" if self.independent else self.draw.choice(("start", "start", "start", "end", "none"))
        if reset == "start":
            self.reset(place)
        self.loop(place, self.draw.choice((2, 2, 2, 3)), self.chunk, "chunk_")
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
        if self.chance(0.15) and not self.independent:
            self.training(place)
        # the loop collects the last batch
        if not place.lines or self.chance(0.5):
            self.any_leaf(place)

    def reset(self, place: Place) -> None:
        inputs: list[tuple[str, Kind]] = [(self.draw.choice(place.of("batch")), "batch")]
        self.leaf(
            place,
            "simulator",
            modes={"simulator": "refresh"},
            inputs=list(inputs),
            batched=True,
            stem="reset_",
        )

    def chunk(self, place: Place) -> None:
        self.extras(place, 1)
        observation = self.draw.choice(place.of("batch")[-3:])
        modes: dict[str, Mode] = {"weights": "read"}
        if self.chance(0.15) and not self.independent:
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

    def training(self, place: Place) -> None:
        """Minibatches: views of what was collected."""
        size = max(1, self.batch // 2)
        lists = place.of("list")
        count = self.batch // size

        def minibatch(inner: Place) -> None:
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

    def random_program(self, place: Place) -> None:
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

    def block(self, place: Place, depth: int) -> None:
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.random()
            if kind < 0.35 and depth < 3 and self.calls_so_far() < 8:
                self.loop(
                    place, self.draw.choice((1, 2, 2, 2, 3)), lambda inner: self.block(inner, depth + 1)
                )
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
        place = Place(lines, 2, {"data": "batch"}, "iteration", {}, {"data"})
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
        main.methods += [f"    {self.opening} iteration(self, data):", *lines, ""]
        return Generated(
            self.seed, self.batch, self._source(), tuple(c for c in self.classes if c != "main"),
            tuple(self.states.values()), tuple(self.sites), region,
        )  # fmt: skip

    def _source(self) -> str:
        text = []
        for name, made in self.classes.items():
            if name == "main":
                continue
            text += [f"class {made.name}:", "    def __init__(self):"]
            text += [*(f"        {line}" for line in made.start), "", *made.methods]
        main = self.classes["main"]
        text += ["class Main:", "    def __init__(self):", *(f"        {line}" for line in main.start)]
        text += [f"        self.{n} = {c.name}()" for n, c in self.classes.items() if n != "main"]
        text += ["", *main.methods]
        return "\n".join(text)


def generate(seed: int) -> Generated:
    """Return the program of a seed."""
    return Author(seed).write()


def main(arguments: list[str]) -> int:
    """Print the program of a seed and run its case."""
    from tests.overlap.case import Report, run_case

    seed = int(arguments[0])
    program = generate(seed)
    print(program.source)
    print(f"region: {program.region}")
    for item in (*program.states, *program.sites):
        print(item)
    report = Report()
    run_case(seed, report)
    print(*(f"{count:6d} {what}" for what, count in sorted(report.counts.items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
