"""The five figures of the paper, each measured into a raw file and drawn from it; `paper_figures.py` is the command."""
