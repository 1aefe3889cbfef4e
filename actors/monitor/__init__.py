"""The monitor: metrics to disk, TensorBoard and console; the time accounting of every actor."""
