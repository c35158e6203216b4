"""Rotary positions. The definition is `reference.rotate`; the kernel turns queries and keys where they stand."""
