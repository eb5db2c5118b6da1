"""One thread for torch: on tiny tensors threads only wait for each other, for milliseconds where cores are busy."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
