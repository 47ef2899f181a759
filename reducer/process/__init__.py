"""The reducer's processes: their life from start to exit, and their siblings."""
