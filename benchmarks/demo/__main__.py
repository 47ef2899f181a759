"""`python -m benchmarks.demo`. Classes of `__main__` cannot be sent to spawned processes, so the code is elsewhere."""

from benchmarks.demo.digits import main

main()
