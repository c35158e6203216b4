"""Tables, figures and pages from finished measurements."""
