"""Plugins of pytest that put ours in the place of what each library's tests would use, one per library."""
