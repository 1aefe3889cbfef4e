"""A seeded fuzzer of the wire: what hostile peers could send, and the runtime that must stand it."""
