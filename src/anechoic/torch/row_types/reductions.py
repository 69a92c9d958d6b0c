"""What is said of losses that are sums where means were promised, or means where sums were."""

A_SUM = (
    "the loss is a sum over the rows of the batch, and loss_reduction='mean' says that it is a mean: by how"
    " much the rows move the model would depend on how many they are. Nothing was released. Take the mean"
    " over rows, losses.mean() or losses.sum() / len(losses); or give make_private loss_reduction='sum'. Call"
    " optimizer.abandon_batch() to go on."
)
A_MEAN = (
    "the loss is a mean over the rows of the batch, and loss_reduction='sum' says that it is a sum: by how"
    " much a row moves the model would depend on how many others there are. Nothing was released. Take"
    " losses.sum(), or give make_private loss_reduction='mean'. Call optimizer.abandon_batch() to go on."
)
