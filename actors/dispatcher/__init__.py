"""The dispatcher: task sources, admission, the ledger of every session, and the buffer of ready groups."""
