"""Import before torch: threads that wait for each other sleep instead of spinning.

By default OpenMP's threads burn their core while they wait. On a machine whose cores are shared with anything else, as
in a simulation or on a small device, the waiting thread then keeps the working one from running: with one other busy
process on two cores a forward pass was ten times slower. On an idle machine the difference is small.
"""

import os

# Read by the OpenMP runtime when torch is loaded; whoever set it already knows better.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
