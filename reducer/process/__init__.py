"""The reducer's processes: their life from start to draining, their siblings, and what they are bound to."""
