"""All Triton code, each kernel beside the tensor function that says what it computes. Plain tensors go in and out.

`attention`, `mlp` and `merge` choose: a kernel in inference on a GPU where it is faster, else tensor operations. The
kernels lie in files called `…_triton`, which are imported only where there is a GPU.
"""
