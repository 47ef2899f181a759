"""`python -m benchmarks.demo`. A class of `__main__` cannot be sent to a spawned process, so the code is elsewhere."""

from benchmarks.demo.digits import main

main()
