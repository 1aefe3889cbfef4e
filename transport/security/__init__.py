"""Who may speak on the run's tcp sockets: keys made for each run, the ZAP handler that admits them, the watch on
handshakes that fail, and which interface is bound. Used by `zmq_network` alone; ipc needs none of it: its sockets lie
in a folder of mode 0700."""
