"""`torchrun ... -m reduction_server.doctor` measures the path from each worker's host to the reducers."""

from worker_plugin.doctor.__main__ import main

if __name__ == "__main__":
    main()
