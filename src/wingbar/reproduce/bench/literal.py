"""The paper's listing word by word, as somebody would type it: what `wingbar bench step` compares with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wingbar.methods.criteria import LowVariance
from wingbar.methods.losses import nt_xent
from wingbar.methods.moco import MoCo
from wingbar.methods.synth import SynthPairs
from wingbar.types import Batch, Output, ParamGroup


class Pseudocode(nn.Module):
    """Algorithm 1 around MoCo v2, a line here for a line there, its passes and graphs included.

    The encoder sees the image twice, the second view with a graph nobody needs, the twin is decoded with another; state
    is written in the middle of the forward pass. Its parts are those of a `SynthPairs`, so both do the same work on the
    same networks. It is here to be measured, not to be trained with: the recipe `pseudocode` has its mathematics.
    """

    def __init__(self, method: SynthPairs, *, kappa: float = 0.02, temperature: float = 0.2) -> None:
        super().__init__()
        base = method.base
        assert isinstance(base, MoCo)
        self.encoder, self.proj_head, self.decoder = base.encoder, base.projector, method.decoder
        self.key_encoder, self.key_head = base.teacher_encoder, base.teacher_projector
        self.queue = base.queue
        self.bank = next(part.bank for part in method.criteria if isinstance(part, LowVariance))
        self.kappa, self.temperature = kappa, temperature

    def forward(self, batch: Batch) -> Output:
        """Losses: `base`, `rebuild` and `pair`, unweighted as in the listing."""
        x, (x1, x2) = batch.image, batch.views
        # L_C
        q = functional.normalize(self.proj_head(self.encoder(x1).vector))
        k = functional.normalize(self.key_head(self.key_encoder(x2).vector)).detach()
        self.queue.push(k)
        l_pos = torch.einsum("ck,ck->c", q, k)
        l_neg = torch.einsum("ck,jk->cj", q, self.queue.rows)
        logits = torch.cat([l_pos[:, None], l_neg], dim=1) / self.temperature
        loss_c = functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=x.device))
        # L_R
        x_hat = self.decoder(self.encoder(x).vector)
        loss_r = functional.mse_loss(x_hat, x)
        # L_Cp
        v = self.encoder(x).vector
        self.bank.push(v)
        v_p = v + self._noise(v, x2)
        x_hat_p = self.decoder(v_p)
        z_hat = self.proj_head(self.encoder(x_hat.detach()).vector)
        z_hat_p = self.proj_head(self.encoder(x_hat_p.detach()).vector)
        return Output({"base": loss_c, "rebuild": loss_r, "pair": nt_xent(z_hat, z_hat_p)})

    def _noise(self, v: Tensor, x2: Tensor) -> Tensor:
        """Both noises of the listing."""
        l_c = nt_xent(self.proj_head(v), self.proj_head(self.encoder(x2).vector))
        (gradient,) = torch.autograd.grad(l_c, v, retain_graph=True)
        eta = (gradient * v).relu()
        eta = (eta - eta.min()) / (eta.max() - eta.min())
        s = functional.normalize(self.bank.rows, dim=0).var(dim=0)
        inverse_s = 1 - (s - s.min()) / (s.max() - s.min() + 1e-12)
        return torch.randn_like(v) * (1 - eta).detach() + torch.randn_like(v) * inverse_s * (s < self.kappa)

    def project(self, feature: Tensor) -> Tensor:
        """g: feature to embedding."""
        return self.proj_head(feature)

    def after_step(self, carries: Sequence[Any]) -> None:
        """The key model follows."""
        self.key_encoder.update(self.encoder)
        self.key_head.update(self.proj_head)

    def embed(self, image: Tensor) -> Tensor:
        """The pooled feature of the query encoder."""
        return self.encoder(image).vector

    def param_groups(self) -> list[ParamGroup]:
        """Query encoder and head, and the decoder."""
        trained = [*self.encoder.parameters(), *self.proj_head.parameters()]
        return [ParamGroup("encoder", trained), ParamGroup("decoder", list(self.decoder.parameters()), adam=1e-4)]
