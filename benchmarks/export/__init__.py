"""Files that `patchslim export` writes, and layers that torchao quantises: parity, accuracy, speed."""
