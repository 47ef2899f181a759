"""One target under atheris (libFuzzer), in its own process: `python -m fuzz.engine TARGET [libFuzzer options]`.

Started by `python -m tests.fuzz`. The code under test is instrumented while it is imported, so none of it may be
imported earlier.
"""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["reduction", "reducer", "worker_plugin"]):
    from fuzz.targets import TARGETS
from fuzz.mutate import mutate


def main() -> None:
    """Run the fuzzer. It never returns: libFuzzer ends the process."""
    name, *options = sys.argv[1:]
    target = TARGETS[name]

    def mutator(data: bytes, longest: int, seed: int) -> bytes:
        return mutate(data, longest, target.shape, random.Random(seed), atheris.Mutate)

    def test_one_input(data: bytes) -> None:
        target.run(data)

    # To merge, libFuzzer starts itself again under this name.
    program = f"{sys.executable} -m fuzz.engine {name}"
    atheris.Setup([program, f"-max_len={target.longest}", *options], test_one_input, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
