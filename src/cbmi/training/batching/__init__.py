"""From a prepared corpus to micro-batches on the device, in the order the data takes.

1. `plan`         which pairs each step of an epoch trains on
2. `builder`      a step's pairs → this rank's micro-batches
3. `micro_batch`  a micro-batch's arrays, pinned in host memory, then on the device
4. `loader`       builds batches ahead of time, in a thread
"""
