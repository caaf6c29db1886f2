"""The paper's five figures, each measured into rows and drawn from them."""
