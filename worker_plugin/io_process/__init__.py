"""The I/O of a rank in a process of its own, for training loops that keep Python's GIL.

    rank's process      admits collectives, encodes them into shared memory, copies results to tensors and
                        completes futures: `RemoteDriver` stands for the driver (remote.py)
    I/O process         has the driver, the core and the streams (child.py); contributions and results
                        stay where the rank has put them

Between them goes a message or two per collective (channel.py, messages.py), and none per chunk.
"""
