"""Rotary positions. The definition is `models.attention.rotate`; the kernel turns queries and keys where they stand."""
