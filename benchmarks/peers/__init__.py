"""ToMe's and EViT's own code beside ours."""
