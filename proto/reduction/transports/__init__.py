"""Code shared by both sides of a transport: the interface of streams, and the messages of the TCP plane."""
