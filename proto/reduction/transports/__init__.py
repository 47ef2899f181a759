"""What both sides of a transport share: the interface of streams, and the messages of the TCP plane."""
