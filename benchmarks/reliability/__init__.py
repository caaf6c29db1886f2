"""How patchslim takes damaged files, sudden ends and odd command lines: a seeded fuzzer of three parts."""
