"""Statements of generated programs: calls of new methods, loops, parents, glue, conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.overlap.declarations import Kind, Mode, Site
from tests.overlap.writing import Place, Writer

#: Writes statements at a place.
Write = Callable[[Place], None]


class Statements(Writer):
    """Chooses statements, and what they say."""

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
