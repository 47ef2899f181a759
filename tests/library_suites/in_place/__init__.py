"""pytest plugins that replace what each library's tests would use with ours, one per library."""
