"""The I/O of a rank in a separate process, for training loops that hold Python's GIL.

    rank's process      admits collectives, encodes them into shared memory, copies results to tensors and
                        completes futures; `RemoteDriver` stands in for the driver (remote.py)
    I/O process         owns the driver, the core and the streams (child.py); contributions and results
                        stay where the rank has put them

They exchange one or two messages per collective (channel.py, messages.py), and none per chunk.
"""
