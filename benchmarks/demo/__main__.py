"""`python -m benchmarks.demo`; apart, because what a spawned process gets cannot be of a package's `__main__`."""

from benchmarks.demo.digits import main

main()
