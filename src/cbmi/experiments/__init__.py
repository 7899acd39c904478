"""Many runs to one table."""
