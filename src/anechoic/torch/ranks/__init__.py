"""One run on several processes of torch.distributed: each has its rows of a batch and its slice of the noise."""
