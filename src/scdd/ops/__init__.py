"""Everything that touches V-wide rows in a hot path: a folder an operation, with a reference and an `impl=` switch."""
