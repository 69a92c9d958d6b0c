"""One run on several processes of torch.distributed: each has its rows, and its slice of the noise."""
