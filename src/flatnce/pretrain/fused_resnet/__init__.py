"""ResNets in few kernels: batch norm, addition and ReLU fused, on a GPU."""
