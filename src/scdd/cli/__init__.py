"""The command line: one file per verb, imported when the verb is used."""
