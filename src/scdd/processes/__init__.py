"""Forward processes: each says its kernel and its rates, and all the algebra follows from them (`base`)."""
