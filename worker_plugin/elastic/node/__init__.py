"""Workers of an elastic job that are several processes: the ranks of one node, as its GPUs have them."""
