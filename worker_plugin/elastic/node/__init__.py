"""Workers of an elastic job that consist of several processes: the ranks of one node, usually one per GPU."""
