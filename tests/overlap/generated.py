"""Random programs: plain classes and loops, as source text, with what a user would declare about them.

``python -m tests.overlap.generated SEED`` prints the program of a seed and runs its case.
"""

from __future__ import annotations

import sys
from typing import Literal

from tests.overlap.declarations import Generated, Kind, Mode, Site
from tests.overlap.statements import Statements
from tests.overlap.writing import Place


class Author(Statements):
    """Chooses what a program does as a whole."""

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
