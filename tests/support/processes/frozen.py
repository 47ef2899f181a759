"""Loaded last by the server of forks.py: whoever is forked then shares its objects, and collects only its own garbage."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
