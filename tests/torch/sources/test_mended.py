"""What torch.func cannot do with rows side by side, though it is work on single rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.marks import slow
from tests.torch.sources.row_passes_setting import each_alone, rowwise

ROWS, LENGTH = 5, 7


class Adapted(nn.Module):
    """An adapter behind a frozen embedding, whose hook asks for a gradient, and a mask that decides."""

    def __init__(self, asks, decides):
        super().__init__()
        self.words, self.adapter, self.decides = nn.Embedding(9, 6), nn.Linear(6, 3), decides
        self.words.requires_grad_(False)
        if asks:
            self.words.register_forward_hook(lambda module, given, made: made.requires_grad_(True))

    def forward(self, words, mask):
        h = self.words(words)
        if self.decides and not mask.bool().all():
            h = h * mask[..., None]
        return self.adapter(h).tanh().sum((1, 2))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = nn.Linear(6, 18)

    def forward(self, x, mask):
        q, k, v = (t[:, None] for t in self.all(x).split(6, -1))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None].bool(), dropout_p=0.3)
        return found.square().sum((1, 2, 3))


def masks():
    return (torch.arange(LENGTH) < torch.tensor([7, 3, 7, 5, 1])[:, None]).long()


@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("asks", [False, True])
def test_a_hook_that_asks_for_gradients_changes_none(asks, decides):
    torch.manual_seed(0)
    module = Adapted(asks, decides)
    words = torch.randint(9, (ROWS, LENGTH))
    given = (words, masks())
    passes, found = rowwise(module, given)
    assert passes._model.asks == asks and not passes._model.loops
    torch.testing.assert_close(found, each_alone(module, given))


@pytest.mark.parametrize("autocast", [False, *slow(True)])
def test_attention_drops_alike_side_by_side_and_alone(autocast):
    torch.manual_seed(0)
    module, x = Attention(), torch.randn(ROWS, LENGTH, 6)
    given, found, alone = (x, masks()), 0, 0
    for _ in range(150):  # the masks differ: the mean of the two does not
        passes, made = rowwise(module, given, autocast=autocast)
        found, alone = found + made / 150, alone + each_alone(module, given, autocast=autocast) / 150
    assert not passes._model.loops
    assert float((found - alone).norm()) <= 0.14 * float(alone.norm())
