"""All Triton code, each kernel beside the tensor function that it equals. Plain tensors go in and out.

An operation has a file: the mathematics, the kernel that runs in inference on a GPU, the choice between both.

- `attention`: values mixed by attention that knows sizes, and what the class token attends to.
- `mlp`: a linear layer and GELU.
- `match`: which patches stay, and which of them the others join; its kernels in `match_kernels`.
- `merge`: the tokens that come of it.
- `available`: where kernels can take over, and how they are launched.
"""
