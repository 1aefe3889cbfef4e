"""One module a messaging system, all behind `Contender`: a client here, a server in a process that it starts."""
