"""The operations behind :class:`flatnce.pretrain.data.Views`, in torch and as a Triton kernel."""
